"""The two doors of the controller, bound by ourselves: a unix socket for its owner, and a port on 127.0.0.1."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import struct
from pathlib import Path
from typing import Any

from weft.errors import WeftError

_CREDENTIALS = struct.Struct("3i")
_BACKLOG = 128


class PortTakenError(WeftError):
    """Somebody else listens on the port."""


class OwnerSocket(socket.socket):
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


def listen_unix(path: Path) -> OwnerSocket:
    """Listen at ``path``, mode 0600 from its first moment; the home must be locked, an old file is replaced."""
    with contextlib.suppress(FileNotFoundError):
        path.unlink()
    listener = OwnerSocket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    mask = os.umask(0o177)
    try:
        listener.bind(str(path))
    finally:
        os.umask(mask)
    listener.listen(_BACKLOG)
    listener.setblocking(False)
    return listener


def listen_local(port: int) -> socket.socket:
    """Listen on 127.0.0.1; port 0 takes any that is free."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(("127.0.0.1", port))
        listener.listen(_BACKLOG)
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
