"""The page: its files from a fixed table, and the way in and out for browsers."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from pydantic import create_model

from weft import web
from weft.daemon.api.guard import SESSION, Refused
from weft.daemon.api.routes import PROBLEMS, Json
from weft.daemon.api.sessions import VALID_S, Sessions

LoggedIn = create_model("LoggedIn", key=(str, ...), valid_s=(float, ...))

# Texts of jobs are shown as text; with these two a slip of ours that would show one as HTML is an error instead.
_TEXT_STAYS_TEXT = "require-trusted-types-for 'script'; trusted-types 'none'"
_CLOSED = f"frame-ancestors 'none'; base-uri 'none'; form-action 'none'; {_TEXT_STAYS_TEXT}"
PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; " + _CLOSED
)


def make_page_router(sessions: Sessions, port: int | None) -> APIRouter:
    """Everything a browser needs beside the api."""
    router = APIRouter(default_response_class=Json, responses=PROBLEMS)
    _add_file(router, "/", web.page())
    for name, file in web.modules().items():
        _add_file(router, f"/web/{name}", file)

    # Coroutines: sessions are touched by the event loop alone, here and in the guard.
    @router.post("/v1/login", status_code=201, response_model=LoggedIn, tags=["page"])
    async def login() -> Response:
        """Begin a session for a browser.  Needs the token itself; the key that comes back may look and cancel."""
        given = sessions.begin()
        answer = Json({"key": given.key, "valid_s": VALID_S}, status_code=201)
        answer.set_cookie(
            cookie_name(port), given.cookie, max_age=int(VALID_S), path="/", httponly=True, samesite="strict"
        )
        return answer

    @router.post("/v1/logout", status_code=204, tags=["page"])
    async def logout(request: Request) -> Response:
        """End the session that asks; asked with the token itself: end them all."""
        session_id = request.scope[SESSION]
        if session_id is None:
            sessions.end_all()
        else:
            sessions.end(session_id)
        return Response(status_code=204)

    return router


def cookie_name(port: int | None) -> str:
    """Cookies are shared between ports: two controllers of one machine must not overwrite each other's."""
    return "weft_page" if port is None else f"weft_page_{port}"


def login_body() -> Refused:
    """What the guard says to a browser that has no session: a page that asks for the token.

    It comes with status 401, and a browser runs no script that came with 401: so its script and style stand in it,
    and are allowed by their hashes.
    """
    file = web.login()
    policy = (
        f"default-src 'none'; script-src {' '.join(web.inline_hashes(file, 'script'))}; "
        f"style-src {' '.join(web.inline_hashes(file, 'style'))}; connect-src 'self'; img-src data:; {_CLOSED}"
    )
    return Refused(file.body, _headers(file, policy))


def _add_file(router: APIRouter, path: str, file: web.WebFile) -> None:
    headers = {name.decode(): value.decode() for name, value in _headers(file, PAGE_POLICY)}

    async def give() -> Response:
        return Response(file.body, headers=headers)

    router.add_api_route(path, give, methods=["GET"], include_in_schema=False, response_class=Response)


def _headers(file: web.WebFile, policy: str) -> list[tuple[bytes, bytes]]:
    named = {
        "content-type": file.content_type,
        "content-security-policy": policy,
        "cross-origin-opener-policy": "same-origin",
        "cross-origin-resource-policy": "same-origin",
    }
    return [(name.encode(), value.encode()) for name, value in named.items()]
