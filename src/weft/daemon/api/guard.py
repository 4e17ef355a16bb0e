"""Who may talk to the controller.  Stands before every route, known or not, on both listeners.

[Note: in this order]
1. The ``Host`` must be ours: a page elsewhere whose name was made to point at 127.0.0.1 sends its own name there.
2. The ``Origin``, where a browser sends one, must be ours: other pages may not even knock.
3. The bearer token must be right, compared in constant time.  It is taken from the header and from nowhere else:
   URLs end up in histories and logs.
4. The body may not be larger than :data:`MAX_BODY_BYTES`, whatever it says about itself.
Nothing here looks at who the caller says it is (``User-Agent``).
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any

from starlette.exceptions import HTTPException

MAX_BODY_BYTES = 1024 * 1024

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


class _Refusal(HTTPException):
    """Also raised while a route reads its body: the framework passes on only errors of this kind."""


class Guard:
    """ASGI application around ours."""

    def __init__(self, inner: Application, token: str, *, port: int | None) -> None:
        self._inner = inner
        self._token = token.encode()
        self._hosts, self._origins = _own_names(port)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._inner(scope, receive, send)
        elif scope["type"] == "http":
            await self._http(scope, receive, send)
        else:
            # Nothing of ours speaks over a websocket; closing before accepting is a 403.
            await send({"type": "websocket.close", "code": 1008})

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = False

        async def sending(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                message["headers"] = [*message.get("headers", ()), *_ON_EVERY_ANSWER]
            await send(message)

        try:
            self._check(scope["headers"])
            if not scope["query_string"].isascii():
                raise _Refusal(400, "the address holds bytes that are not ASCII: write them as %XX")
            await self._inner(scope, _capped(receive), sending)
        except _Refusal as refusal:
            if started:
                raise
            await _answer(sending, refusal)

    def _check(self, headers: Iterable[tuple[bytes, bytes]]) -> None:
        given: dict[bytes, list[bytes]] = {}
        for name, value in headers:
            given.setdefault(name.lower(), []).append(value.strip())
        hosts = given.get(b"host", [])
        if len(hosts) != 1:
            raise _Refusal(400, "expected exactly one Host header")
        if hosts[0].lower() not in self._hosts:
            raise _Refusal(421, "this controller does not answer to that Host: use the address that `weft up` printed")
        if any(origin.lower() not in self._origins for origin in given.get(b"origin", [])):
            raise _Refusal(403, "pages of another origin may not talk to this controller")
        if any(site not in (b"same-origin", b"none") for site in given.get(b"sec-fetch-site", [])):
            raise _Refusal(403, "pages of another site may not talk to this controller")
        if not self._knows_token(given.get(b"authorization", [])):
            raise _Refusal(401, "no valid token: send `Authorization: Bearer TOKEN` with what is in WEFT_HOME/token")
        for length in given.get(b"content-length", []):
            # isdigit alone would let through digits of other scripts, but these are bytes.
            if not length.isdigit():
                raise _Refusal(400, "Content-Length is no number")
            if len(length) > 20 or int(length) > MAX_BODY_BYTES:
                raise _too_large()

    def _knows_token(self, values: list[bytes]) -> bool:
        if len(values) != 1:
            return False
        scheme, _, token = values[0].partition(b" ")
        # Compared whatever the scheme is: the time taken tells nothing.
        is_right = hmac.compare_digest(token.strip(), self._token)
        return scheme.lower() == b"bearer" and is_right


def _own_names(port: int | None) -> tuple[frozenset[bytes], frozenset[bytes]]:
    """What we are called: over the unix socket without a port, over TCP with it."""
    names = ("localhost", "127.0.0.1")
    with_port = [] if port is None else [f"{name}:{port}" for name in names]
    hosts = frozenset(name.encode() for name in (*names, *with_port))
    return hosts, frozenset(f"http://{name}".encode() for name in with_port)


def _capped(receive: Receive) -> Receive:
    """A body without a length (chunked) is counted as it comes."""
    num_bytes = 0

    async def counted() -> Message:
        nonlocal num_bytes
        message = await receive()
        if message["type"] == "http.request":
            num_bytes += len(message.get("body", b""))
            if num_bytes > MAX_BODY_BYTES:
                raise _too_large()
        return message

    return counted


def _too_large() -> _Refusal:
    return _Refusal(413, f"the body is larger than {MAX_BODY_BYTES // 1024} KiB: send less")


async def _answer(send: Send, refusal: _Refusal) -> None:
    body = json.dumps({"error": refusal.detail}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if refusal.status_code == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    if refusal.status_code == 413:
        # The rest of the body is not read.
        headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": refusal.status_code, "headers": headers})
    await send({"type": "http.response.body", "body": body})
