"""Who may access the controller.  Runs before every route, known or not, on both listeners.

[Note: in this order]
1. The ``Host`` must be ours: a page whose domain was made to resolve to 127.0.0.1 sends its own name there.
2. The ``Origin``, if a browser sends one, must be ours.
3. The bearer token must be correct, compared in constant time.  It is read only from the header: URLs end up in
   histories and logs, and cookies are sent to any server on another port of this machine.
   A browser session's key is accepted instead, for viewing and canceling, and for changes if the session was started
   with that permission; a session's cookie gives access only to the dashboard's own files (see ``sessions.py``).
4. The body must not be larger than :data:`MAX_BODY_BYTES`, regardless of its headers, and must be complete within
   :data:`BODY_S` seconds.
"""

from __future__ import annotations

import asyncio
import hmac
import json
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any, Final, NamedTuple

from starlette.exceptions import HTTPException

from weft.daemon.api.sessions import Permission, SessionId, Sessions

MAX_BODY_BYTES = 1024 * 1024
BODY_S = 10.0

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

_ON_EVERY_ANSWER = (
    (b"cache-control", b"no-store"),
    (b"x-content-type-options", b"nosniff"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"referrer-policy", b"no-referrer"),
)


# Key in the scope: the session's id, or None for the token itself.
SESSION: Final = "weft.session"
# Key in the scope: what the request may do.
PERMISSION: Final = "weft.permission"
# Key in the scope: a function to call once a request on the connection was admitted.
RECOGNIZED: Final = "weft.recognized"

Given = dict[bytes, list[bytes]]


class Refused(NamedTuple):
    """What a browser without a session gets."""

    body: bytes
    headers: list[tuple[bytes, bytes]]


class _Refusal(HTTPException):
    """Also raised while a route reads its body: the framework passes on only errors of this kind."""


class Guard:
    """An ASGI application around ours."""

    def __init__(
        self,
        inner: Application,
        token: str,
        sessions: Sessions,
        *,
        port: int | None,
        cookie: str,
        login: Refused,
        body_s: float = BODY_S,
    ) -> None:
        """``cookie``: its name; ``login``: shown to browsers instead of the 401 that programs get."""
        self._inner = inner
        self._token = token.encode()
        self._sessions = sessions
        self._cookie = cookie.encode()
        self._login = login
        self._body_s = body_s
        self._hosts, self._origins = _own_names(port)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._inner(scope, receive, send)
        elif scope["type"] == "http":
            await self._http(scope, receive, send)
        else:
            # We use no websockets; closing before accepting is a 403.
            await send({"type": "websocket.close", "code": 1008})

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = False

        async def sending(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                own = list(message.get("headers", ()))
                names = {name.lower() for name, _ in own}
                message["headers"] = own + [pair for pair in _ON_EVERY_ANSWER if pair[0] not in names]
            await send(message)

        given = _by_name(scope["headers"])
        try:
            scope[SESSION] = self._check(scope, given)
            if RECOGNIZED in scope:
                scope[RECOGNIZED]()
            if not scope["query_string"].isascii():
                raise _Refusal(400, "the URL contains bytes that are not ASCII: write them as %XX")
            await self._inner(scope, _capped(receive, self._body_s), sending)
        except _Refusal as refusal:
            if started:
                raise
            is_browser = refusal.status_code == 401 and scope["method"] == "GET" and _prefers_html(given)
            await _answer(sending, refusal, self._login if is_browser else None)

    def _check(self, scope: Scope, given: Given) -> SessionId | None:
        """Raises if the request is refused; returns its session, or ``None`` if it has the token itself."""
        hosts = given.get(b"host", [])
        if len(hosts) != 1:
            raise _Refusal(400, "expected exactly one Host header")
        if hosts[0].lower() not in self._hosts:
            raise _Refusal(421, "this controller does not serve that Host: use the URL that `weft up` printed")
        if any(origin.lower() not in self._origins for origin in given.get(b"origin", [])):
            raise _Refusal(403, "pages of another origin may not access this controller")
        if any(site not in (b"same-origin", b"none") for site in given.get(b"sec-fetch-site", [])):
            raise _Refusal(403, "pages of another site may not access this controller")
        session_id = self._admitted(scope, given)
        for length in given.get(b"content-length", []):
            if not length.isdigit():  # bytes, so only ASCII digits
                raise _Refusal(400, "Content-Length is not a number")
            if len(length) > 20 or int(length) > MAX_BODY_BYTES:
                raise _too_large()
        return session_id

    def _admitted(self, scope: Scope, given: Given) -> SessionId | None:
        method, path = scope["method"], scope["path"]
        bearer = _bearer(given.get(b"authorization", []))
        if bearer is not None and hmac.compare_digest(bearer, self._token):
            scope[PERMISSION] = Permission.CHANGE
            return None
        session_id = None if bearer is None else self._sessions.of_key(bearer)
        if session_id is not None:
            permission = scope[PERMISSION] = self._sessions.permission(session_id)
            if not _may_in_session(method, path, permission):
                raise _Refusal(403, _REFUSED[permission])
            return session_id
        if method == "GET" and _is_file(path) and any(map(self._sessions.knows_cookie, self._cookies(given))):
            return None  # files are the same for everyone
        raise _Refusal(401, "no valid token: send `Authorization: Bearer TOKEN` with the contents of WEFT_HOME/token")

    def _cookies(self, given: Given) -> list[bytes]:
        """All values of our cookie: other servers on this machine may have set cookies of the same name."""
        pairs = [pair.partition(b"=") for line in given.get(b"cookie", []) for pair in line.split(b";")]
        return [value.strip() for name, _, value in pairs if name.strip() == self._cookie]


def _bearer(values: list[bytes]) -> bytes | None:
    if len(values) != 1:
        return None
    scheme, _, value = values[0].partition(b" ")
    return value.strip() if scheme.lower() == b"bearer" else None


def _may_in_session(method: str, path: str, permission: Permission) -> bool:
    """Allows only what the dashboard does: without permission to change, a stolen key cannot run anything."""
    if method == "GET" or (method == "POST" and path in ("/v1/logout", "/v1/whatif")):
        return True
    of_a_job = path.startswith("/v1/jobs/")
    if method == "POST" and of_a_job and path.endswith("/cancel"):
        return True
    if permission is not Permission.CHANGE:
        return False
    return (method == "PATCH" and of_a_job) or (method == "POST" and path in _CHANGES)


_CHANGES = frozenset({"/v1/jobs", "/v1/outlook", "/v1/nodes/drain", "/v1/nodes/resume"})
_REFUSED = {
    Permission.VIEW: (
        "this dashboard session may only view and cancel: log in again and allow changes, or use the token itself"
    ),
    Permission.CHANGE: "a dashboard session may not do this: it needs the token itself",
}


def _is_file(path: str) -> bool:
    return path == "/" or path.startswith("/web/")


def _prefers_html(given: Given) -> bool:
    """As browsers do when a user opens a URL; scripts and programs do not."""
    first = b",".join(given.get(b"accept", [])).partition(b",")[0]
    return first.partition(b";")[0].strip().lower() == b"text/html"


def _by_name(headers: Iterable[tuple[bytes, bytes]]) -> Given:
    given: Given = {}
    for name, value in headers:
        given.setdefault(name.lower(), []).append(value.strip())
    return given


def _own_names(port: int | None) -> tuple[frozenset[bytes], frozenset[bytes]]:
    """Our host names and origins: without a port over the unix socket, with it over TCP."""
    names = ("localhost", "127.0.0.1")
    with_port = [] if port is None else [f"{name}:{port}" for name in names]
    hosts = frozenset(name.encode() for name in (*names, *with_port))
    return hosts, frozenset(f"http://{name}".encode() for name in with_port)


def _capped(receive: Receive, limit_s: float) -> Receive:
    """Counts a body without a length (chunked) as it arrives; the whole body has one deadline."""
    num_bytes = 0
    has_more = True
    deadline_s: float | None = None

    async def counted() -> Message:
        nonlocal num_bytes, has_more, deadline_s
        if not has_more:
            return await receive()  # waits for the client to hang up, however long that takes
        if deadline_s is None:
            deadline_s = asyncio.get_running_loop().time() + limit_s
        try:
            async with asyncio.timeout_at(deadline_s):
                message = await receive()
        except TimeoutError:
            raise _Refusal(408, f"the body was not complete after {limit_s:g} s: send it again, faster") from None
        has_more = message.get("more_body", False)
        if message["type"] == "http.request":
            num_bytes += len(message.get("body", b""))
            if num_bytes > MAX_BODY_BYTES:
                raise _too_large()
        return message

    return counted


def _too_large() -> _Refusal:
    return _Refusal(413, f"the body is larger than {MAX_BODY_BYTES // 1024} KiB: send less")


async def _answer(send: Send, refusal: _Refusal, shown: Refused | None) -> None:
    if shown is None:
        shown = Refused(json.dumps({"error": refusal.detail}).encode(), [(b"content-type", b"application/json")])
    body = shown.body
    headers = [*shown.headers, (b"content-length", str(len(body)).encode())]
    if refusal.status_code == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    if refusal.status_code in (408, 413):
        # The rest of the body is not read.
        headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": refusal.status_code, "headers": headers})
    await send({"type": "http.response.body", "body": body})
