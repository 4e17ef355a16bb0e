"""What Linux offers for a lease: barriers on other cores, and a sure way to hear of a process's death."""

from __future__ import annotations

import ctypes
import os
import platform
import socket
import struct

_MEMBARRIER = {"x86_64": 324, "aarch64": 283}.get(platform.machine())
_GLOBAL_EXPEDITED = 1 << 1
_REGISTER_GLOBAL_EXPEDITED = 1 << 2
_SO_PEERPIDFD = 77
_libc = ctypes.CDLL(None, use_errno=True)


def accept_barriers() -> bool:
    """Have this process take part in :func:`barrier` of others; whether the kernel can do it."""
    return _membarrier(_REGISTER_GLOBAL_EXPEDITED)


def barrier() -> bool:
    """Order all memory accesses on every core that runs a process which accepts barriers."""
    return _membarrier(_GLOBAL_EXPEDITED)


def _membarrier(command: int) -> bool:
    return _MEMBARRIER is not None and _libc.syscall(_MEMBARRIER, command, 0, 0) == 0


def peer(connection: socket.socket) -> tuple[int, int]:
    """Process and user at the other end of a unix socket, as the kernel saw them when it connected."""
    pid, uid, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return pid, uid


def peer_pidfd(connection: socket.socket, pid: int) -> int | None:
    """A descriptor that becomes readable when the peer dies, though its children may keep the socket open.

    ``None`` if it is dead already, or lives where this process cannot see it.
    """
    try:
        return int(connection.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD))
    except OSError:
        pass  # before Linux 6.5 the kernel does not know the question
    try:
        return os.pidfd_open(pid)
    except OSError:
        return None
