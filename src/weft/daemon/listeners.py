"""The controller's two listeners: a unix socket for its owner, and a port on 127.0.0.1.

[Note: out of descriptors]
When a process has no file descriptors left, ``accept`` fails and leaves the connection in the queue, so an event loop
would wake up for it over and over.  So we hold a few descriptors in reserve.  The owner's connections are served with
them; a connection to the port is accepted and closed.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import socket
import struct
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Self

from weft.daemon.home import Home, Record
from weft.errors import WeftError

_CREDENTIALS = struct.Struct("3i")
_BACKLOG = 1024
_NUM_RESERVED = 16
_NONE_LEFT = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
CHECK_EVERY_S = 2.0

_log = logging.getLogger(__name__)


class PortTakenError(WeftError):
    """Another program uses the port."""


class Reserve:
    """File descriptors held for when the process runs out of them."""

    def __init__(self) -> None:
        self._held: list[int] = []
        self.refill()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        while self.lend():
            pass

    def lend(self) -> bool:
        """Free one descriptor; ``False`` if all are lent."""
        if self._held:
            os.close(self._held.pop())
            return True
        return False

    @property
    def is_lent(self) -> bool:
        return len(self._held) < _NUM_RESERVED

    def refill(self) -> None:
        with contextlib.suppress(OSError):
            while len(self._held) < _NUM_RESERVED:
                self._held.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))


class _Listener(socket.socket):
    """Never reports a lack of descriptors to the event loop: see the note above."""

    reserve: Reserve

    def listen(self, backlog: int = _BACKLOG, /) -> None:
        """An event loop would shorten the queue to the number it accepts per wakeup."""
        super().listen(max(backlog, _BACKLOG))

    def accept(self) -> tuple[socket.socket, Any]:
        self.reserve.refill()
        try:
            return super().accept()
        except OSError as error:
            if error.errno not in _NONE_LEFT:
                raise
            if not self.reserve.lend():
                raise ConnectionAbortedError("no file descriptor is left, not even in reserve") from None
            accepted = super().accept()
            _log.error("a client connected, but the controller cannot open more files: %s", error.strerror)
            return accepted


class PortSocket(_Listener):
    """Accepts every user of this machine while descriptors last."""

    def accept(self) -> tuple[socket.socket, Any]:
        connection, address = super().accept()
        if self.reserve.is_lent:
            connection.close()
            raise ConnectionAbortedError("rejected: no file descriptors are left")
        return connection, address


class OwnerSocket(_Listener):
    """Accepts only this user's processes, even if the file's mode was changed."""

    def accept(self) -> tuple[socket.socket, Any]:
        connection, address = super().accept()
        if peer_uid(connection) != os.getuid():
            connection.close()
            # An event loop takes this for a client that hung up.
            raise ConnectionAbortedError("a process of another user was rejected")
        return connection, address


def peer_uid(connection: socket.socket) -> int:
    """The user at the other end, according to the kernel."""
    data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    uid: int = _CREDENTIALS.unpack(data)[1]
    return uid


def listen_unix(path: Path, reserve: Reserve) -> OwnerSocket:
    """Listen at ``path``, which has mode 0600 from the start.  Replaces an old file: the home must be locked."""
    with contextlib.suppress(FileNotFoundError):
        path.unlink()
    listener = OwnerSocket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    listener.reserve = reserve
    mask = os.umask(0o177)
    try:
        listener.bind(str(path))
    finally:
        os.umask(mask)
    listener.listen()
    listener.setblocking(False)
    return listener


def listen_local(port: int, reserve: Reserve) -> PortSocket:
    """Listen on 127.0.0.1; port 0 means any free port."""
    listener = PortSocket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    listener.reserve = reserve
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(("127.0.0.1", port))
        listener.listen()
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise PortTakenError(
                f"port {port} on 127.0.0.1 is used by another program: choose another one with `weft up --port`, or "
                "let weft choose with `--port 0`"
            ) from None
        raise PortTakenError(
            f"port {port} on 127.0.0.1 cannot be used ({error.strerror}): choose another one with `weft up --port`"
        ) from error
    listener.setblocking(False)
    return listener


async def keep_reachable(
    home: Home,
    record: Record,
    reserve: Reserve,
    serve: Callable[[OwnerSocket], Awaitable[None]],
    rebind_channel: Callable[[], Future[None]],
) -> None:
    """Recreate the files by which clients and workers reach the controller, if they are deleted while it runs.

    ``serve`` makes the server listen on one more socket.  A deleted token stays deleted: that is how to request a new
    one.
    """

    async def listen() -> None:
        await serve(listen_unix(home.api_socket, reserve))

    async def rebind() -> None:
        await asyncio.wrap_future(rebind_channel())

    async def write_record() -> None:
        home.write_record(record)

    makers = {home.api_socket: listen, home.channel_socket: rebind, home.record_file: write_record}
    made = {path: _identity(path) for path in makers}
    while True:
        await asyncio.sleep(CHECK_EVERY_S)
        for path, make in makers.items():
            try:
                if made[path] is None or _identity(path) != made[path]:
                    home.prepare()
                    await make()
                    made[path] = _identity(path)
                    _log.warning("%s was gone: recreated it", path)
            except (OSError, WeftError) as error:
                _log.warning("%s, which makes the controller reachable, cannot be created: %s", path, error)


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = os.stat(path, follow_symlinks=False)
    except OSError:
        return None
    return found.st_dev, found.st_ino
