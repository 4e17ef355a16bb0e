"""The controller's HTTP application: routes behind the guard; every error is answered with a sentence."""

from __future__ import annotations

import logging
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from weft.core.nearest_name import unknown_name
from weft.daemon.api.dashboard import cookie_name, login_body, make_dashboard_router
from weft.daemon.api.guard import BODY_S, Application, Guard
from weft.daemon.api.routes import Json, make_router
from weft.daemon.api.schemas import JobRequest, LoginRequest, PurgeRequest, ShutdownRequest, WhatifRequest
from weft.daemon.api.sessions import Sessions
from weft.daemon.contract import ConflictError, StoppingError, UnknownJobError
from weft.daemon.service import Controller
from weft.errors import StoreError, UsageError, WeftError
from weft.version import __version__

_log = logging.getLogger("weft.api")
_BODIES: dict[str, type[BaseModel]] = {
    "/v1/jobs": JobRequest,
    "/v1/outlook": JobRequest,
    "/v1/purge": PurgeRequest,
    "/v1/shutdown": ShutdownRequest,
    "/v1/whatif": WhatifRequest,
    "/v1/login": LoginRequest,
}
_STATUSES: dict[type[Exception], int] = {
    UnknownJobError: 404,
    ConflictError: 409,
    UsageError: 400,
    StoreError: 503,
    StoppingError: 503,
}


def make_app(controller: Controller, token: str, *, port: int | None = None, body_s: float = BODY_S) -> Application:
    """The application for both listeners.  ``port``: the one on 127.0.0.1, for the host names it accepts."""
    # The framework's documentation pages load scripts from other hosts; the description itself is enough.
    app = FastAPI(title="weft", version=__version__, docs_url=None, redoc_url=None, openapi_url="/openapi.json")
    app.include_router(make_router(controller))
    sessions = Sessions()
    app.include_router(make_dashboard_router(sessions, port))
    for kind, status in _STATUSES.items():
        app.add_exception_handler(kind, _refusing(status))
    app.add_exception_handler(RequestValidationError, _misread)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(WeftError, _refusing(503))
    app.add_exception_handler(Exception, _unforeseen)
    return Guard(app, token, sessions, port=port, cookie=cookie_name(port), login=login_body(), body_s=body_s)


def _refusing(status: int) -> Any:
    async def answer(request: Request, error: Exception) -> Json:
        return Json({"error": str(error)}, status_code=status)

    return answer


async def _http_error(request: Request, error: Exception) -> Json:
    if not isinstance(error, HTTPException):
        return await _unforeseen(request, error)
    message = error.detail
    if error.status_code == 404:
        message = "there is nothing at this URL: /openapi.json lists all routes"
    return Json({"error": message}, status_code=error.status_code, headers=error.headers)


async def _misread(request: Request, error: Exception) -> Json:
    """The first error, without repeating what was sent."""
    if not isinstance(error, RequestValidationError) or not error.errors():
        return await _unforeseen(request, error)
    first = error.errors()[0]
    place = ".".join(str(part) for part in first["loc"][1:])
    if first["type"] == "json_invalid":
        message = f"the body is not JSON: {first.get('ctx', {}).get('error', 'it cannot be parsed')}"
    elif first["type"] == "extra_forbidden" and request.scope["path"] in _BODIES:
        message = unknown_name("field", place, _BODIES[request.scope["path"]].model_fields)
    else:
        message = f"{place or 'the body'}: {first['msg']}"
    return Json({"error": message}, status_code=422)


async def _unforeseen(request: Request, error: Exception) -> Json:
    """A bug; details go to the log (no headers, so no token), not to the client."""
    _log.error("%r %r failed", request.method, request.scope["path"], exc_info=error)
    message = "internal error in the controller: see controller.log in its home; nothing else is affected"
    return Json({"error": message}, status_code=500)
