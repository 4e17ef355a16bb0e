"""Limits on connections: how many, and for how long.

[Note: connections]
Any user of this machine can connect to the port on 127.0.0.1, and a connection costs a file descriptor before it has
sent a byte.  So each listener has its own limit, and a connection counts as *unknown* until a request on it carried
the token or a session's key:

- An unknown connection is closed :attr:`ConnectionPatience.unknown_s` after it was accepted, even if it is active.
  Requests without a token are answered immediately, so an honest client does not need longer.
- When there are too many, the oldest unknown one is closed, so idle connections cannot keep new ones out.
- The unix socket has its own limit: it works while the port is flooded.
- The head of every request must be complete :attr:`ConnectionPatience.head_s` after the last answer; the guard does the
  same for bodies.  Both are measured from the start, so sending one byte per second does not help.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import resource
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from weft.daemon.api.guard import RECOGNIZED, Application, Receive, Scope, Send

MAX_OPEN_FILES = 16384
"""The soft limit is raised to this and no further: workers inherit it, and some programs close every possible file."""
ACCEPTED_AT_ONCE = 64
_BUSY = b'{"error": "too many connections to this controller: close some, or try again later"}'

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ConnectionPatience:
    """How long a connection may take, in seconds."""

    unknown_s: float = 10.0
    head_s: float = 10.0


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Maximum number of connections of one listener: in total, and unknown ones."""

    total: int
    unknown: int


def raise_open_files() -> int:
    """Raise the soft limit on file descriptors; returns the new limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_OPEN_FILES if hard == resource.RLIM_INFINITY else min(MAX_OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        return wanted
    return MAX_OPEN_FILES if soft == resource.RLIM_INFINITY else soft


def limits_for(num_files: int) -> tuple[ConnectionLimits, ConnectionLimits]:
    """For the unix socket and the port, about half of all descriptors; engine and journal have the rest.

    >>> limits_for(1024)
    (ConnectionLimits(total=384, unknown=384), ConnectionLimits(total=128, unknown=64))
    """
    owner = max(min(3 * num_files // 8, 4096), 8)
    port = max(min(num_files // 8, 256), 8)
    return ConnectionLimits(owner, owner), ConnectionLimits(port, port // 2)


class Door:
    """The connections of one listener."""

    def __init__(self, name: str, limits: ConnectionLimits) -> None:
        self._name = name
        self._limits = limits
        self._known: set[Connection] = set()
        self._unknown: dict[Connection, None] = {}  # oldest first

    def enter(self, connection: Connection) -> None:
        self._unknown[connection] = None
        num_open = len(self._known) + len(self._unknown)
        if num_open <= self._limits.total and len(self._unknown) <= self._limits.unknown:
            return
        oldest = next(iter(self._unknown))
        _log.warning("%s has %d connections: closing the oldest one without a token", self._name, num_open)
        del self._unknown[oldest]
        oldest.turn_away(busy=oldest is connection)

    def recognize(self, connection: Connection) -> None:
        if connection in self._unknown:
            del self._unknown[connection]
            self._known.add(connection)

    def leave(self, connection: Connection) -> None:
        self._unknown.pop(connection, None)
        self._known.discard(connection)


class Connection(H11Protocol):
    """One connection, with the rules of the note above."""

    def __init__(self, *args: Any, owner: Door, port: Door, patience: ConnectionPatience, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._owner_door, self._port_door, self._patience = owner, port, patience
        self._inner: Application = self.app
        self.app = self._ask
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        is_unix = transport.get_extra_info("socket").family == socket.AF_UNIX
        self._door = self._owner_door if is_unix else self._port_door
        self._is_known = False
        self._expect_within(self._patience.unknown_s)
        self._door.enter(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._expect_within(None)
        self._door.leave(self)
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._is_known:
            self._expect_within(self._patience.head_s)

    def turn_away(self, *, busy: bool) -> None:
        """Close it; ``busy`` sends a 503 first, possible only if nothing has been sent yet."""
        if busy:
            head = f"HTTP/1.1 503 Service Unavailable\r\nContent-Length: {len(_BUSY)}\r\nConnection: close\r\n"
            self.transport.write(head.encode() + b"Content-Type: application/json\r\n\r\n" + _BUSY)
        self.transport.abort()

    async def _ask(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._is_known:
            self._expect_within(None)
        scope[RECOGNIZED] = self._recognize
        await self._inner(scope, receive, send)

    def _recognize(self) -> None:
        self._is_known = True
        self._expect_within(None)
        self._door.recognize(self)

    def _expect_within(self, limit_s: float | None) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = None if limit_s is None else self.loop.call_later(limit_s, self.transport.abort)


def server_config(
    app: Application, *, patience: ConnectionPatience | None = None, num_files: int | None = None, **options: Any
) -> uvicorn.Config:
    """The server configuration for both listeners."""
    owner, port = limits_for(raise_open_files() if num_files is None else num_files)
    make: Callable[..., Connection] = functools.partial(
        Connection,
        owner=Door("the unix socket", owner),
        port=Door("the port", port),
        patience=patience or ConnectionPatience(),
    )
    return uvicorn.Config(
        app,
        http=make,  # type: ignore[arg-type]
        ws="none",
        log_config=None,
        access_log=False,
        lifespan="off",
        backlog=ACCEPTED_AT_ONCE,
        **options,
    )
