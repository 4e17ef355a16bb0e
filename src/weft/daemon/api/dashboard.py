"""The dashboard: its files from a fixed table, and login and logout for browsers."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Body, Request, Response
from pydantic import create_model

from weft import web
from weft.daemon.api.guard import SESSION, Refused
from weft.daemon.api.routes import PROBLEMS, Json
from weft.daemon.api.schemas import LoginRequest
from weft.daemon.api.sessions import VALID_S, Sessions

LoggedIn = create_model("LoggedIn", key=(str, ...), valid_s=(float, ...), permission=(str, ...))

# Text from jobs is shown as text; with these two, a bug that would show it as HTML becomes an error.
_TEXT_STAYS_TEXT = "require-trusted-types-for 'script'; trusted-types 'none'"
_CLOSED = f"frame-ancestors 'none'; base-uri 'none'; form-action 'none'; {_TEXT_STAYS_TEXT}"
DASHBOARD_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; " + _CLOSED
)


def make_dashboard_router(sessions: Sessions, port: int | None) -> APIRouter:
    """Everything a browser needs besides the API."""
    router = APIRouter(default_response_class=Json, responses=PROBLEMS)
    _add_file(router, "/", web.index())
    for name, file in web.modules().items():
        _add_file(router, f"/web/{name}", file)

    # Coroutines: only the event loop touches sessions, here and in the guard.
    @router.post("/v1/login", status_code=201, response_model=LoggedIn, tags=["dashboard"])
    async def login(request: Annotated[LoginRequest | None, Body()] = None) -> Response:
        """Start a browser session.  Needs the token itself; the returned key can view and cancel, or also change."""
        permission = (request or LoginRequest()).permission
        given = sessions.begin(permission)
        document = {"key": given.key, "valid_s": VALID_S, "permission": permission.value}
        answer = Json(document, status_code=201)
        answer.set_cookie(
            cookie_name(port), given.cookie, max_age=int(VALID_S), path="/", httponly=True, samesite="strict"
        )
        return answer

    @router.post("/v1/logout", status_code=204, tags=["dashboard"])
    async def logout(request: Request) -> Response:
        """End the session that sends this; if sent with the token itself, end all sessions."""
        session_id = request.scope[SESSION]
        if session_id is None:
            sessions.end_all()
        else:
            sessions.end(session_id)
        return Response(status_code=204)

    return router


def cookie_name(port: int | None) -> str:
    """Cookies are shared between ports: two controllers on one machine must not overwrite each other's."""
    return "weft_page" if port is None else f"weft_page_{port}"


def login_body() -> Refused:
    """What the guard sends to a browser without a session: the login form.

    Its status is 401, and a browser does not run a script file served with status 401, so its script and style are
    inline and allowed by their hashes.
    """
    file = web.login()
    policy = (
        f"default-src 'none'; script-src {' '.join(web.inline_hashes(file, 'script'))}; "
        f"style-src {' '.join(web.inline_hashes(file, 'style'))}; connect-src 'self'; img-src data:; {_CLOSED}"
    )
    return Refused(file.body, _headers(file, policy))


def _add_file(router: APIRouter, path: str, file: web.WebFile) -> None:
    headers = {name.decode(): value.decode() for name, value in _headers(file, DASHBOARD_POLICY)}

    async def give(request: Request) -> Response:
        return Response(file.body, headers=headers)

    # Not an API route: nothing is validated, and preparing that for every file would take half of a controller's start.
    router.add_route(path, give, methods=["GET"], include_in_schema=False)


def _headers(file: web.WebFile, policy: str) -> list[tuple[bytes, bytes]]:
    named = {
        "content-type": file.content_type,
        "content-security-policy": policy,
        "cross-origin-opener-policy": "same-origin",
        "cross-origin-resource-policy": "same-origin",
    }
    return [(name.encode(), value.encode()) for name, value in named.items()]
