"""The controller's two listeners, bound by ourselves: a unix socket for its owner, and a port on 127.0.0.1.

[Note: out of descriptors]
When a process has no file descriptor left, ``accept`` fails and leaves the connection in the queue, so an event loop
would be woken for it again and again.  A few descriptors are therefore held in reserve.  The owner's connections are
served on them; one to the port is accepted and closed.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import socket
import struct
from pathlib import Path
from types import TracebackType
from typing import Any

from weft.errors import WeftError

_CREDENTIALS = struct.Struct("3i")
_BACKLOG = 1024
_NUM_RESERVED = 16
_NONE_LEFT = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)

_log = logging.getLogger(__name__)


class PortTakenError(WeftError):
    """Somebody else listens on the port."""


class Reserve:
    """File descriptors that are held so that there are some when there are none."""

    def __init__(self) -> None:
        self._held: list[int] = []
        self.refill()

    def __enter__(self) -> Reserve:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        while self.lend():
            pass

    def lend(self) -> bool:
        """Make room for one; ``False`` when all are lent."""
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
    """Never lets the event loop hear of a lack of descriptors: see the note above."""

    reserve: Reserve

    def listen(self, backlog: int = _BACKLOG, /) -> None:
        """An event loop would make the queue as short as the number it accepts at once."""
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
            _log.error("a connection came, but the controller cannot open more files: %s", error.strerror)
            return accepted


class PortSocket(_Listener):
    """Accepts anybody on this machine while there are descriptors for them."""

    def accept(self) -> tuple[socket.socket, Any]:
        connection, address = super().accept()
        if self.reserve.is_lent:
            connection.close()
            raise ConnectionAbortedError("turned away: no file descriptors are left")
        return connection, address


class OwnerSocket(_Listener):
    """Accepts connections of this user's processes only, whatever the mode of the file may have become."""

    def accept(self) -> tuple[socket.socket, Any]:
        connection, address = super().accept()
        if peer_uid(connection) != os.getuid():
            connection.close()
            # What an event loop takes for a caller that hung up while waiting.
            raise ConnectionAbortedError("a process of another user was turned away")
        return connection, address


def peer_uid(connection: socket.socket) -> int:
    """The user at the other end, as the kernel knows it."""
    data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    uid: int = _CREDENTIALS.unpack(data)[1]
    return uid


def listen_unix(path: Path, reserve: Reserve) -> OwnerSocket:
    """Listen at ``path``, mode 0600 from its first moment; the home must be locked, an old file is replaced."""
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
    """Listen on 127.0.0.1; port 0 takes any that is free."""
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
                f"port {port} of 127.0.0.1 is taken by another program: choose another one with `weft up --port`, or "
                "let weft choose with `--port 0`"
            ) from None
        raise PortTakenError(
            f"port {port} of 127.0.0.1 cannot be used ({error.strerror}): choose another one with `weft up --port`"
        ) from error
    listener.setblocking(False)
    return listener
