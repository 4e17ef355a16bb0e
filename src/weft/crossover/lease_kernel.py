"""Linux calls for leases: memory barriers on other cores, and a reliable signal that a process has died."""

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
    """Make :func:`barrier` of other processes cover this one; whether the kernel supports it."""
    return _membarrier(_REGISTER_GLOBAL_EXPEDITED)


def barrier() -> bool:
    """Order all memory accesses on every core that runs a process that accepts barriers."""
    return _membarrier(_GLOBAL_EXPEDITED)


def _membarrier(command: int) -> bool:
    return _MEMBARRIER is not None and _libc.syscall(_MEMBARRIER, command, 0, 0) == 0


def peer(connection: socket.socket) -> tuple[int, int]:
    """Process and user id at the other end of a Unix socket, as recorded by the kernel when it connected."""
    pid, uid, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return pid, uid


def peer_pidfd(connection: socket.socket, pid: int) -> int | None:
    """A descriptor that becomes readable when the peer dies, even if its children keep the socket open.

    ``None`` if it is already dead or invisible to this process.
    """
    try:
        return int(connection.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD))
    except OSError:
        pass  # Linux before 6.5
    try:
        return os.pidfd_open(pid)
    except OSError:
        return None
