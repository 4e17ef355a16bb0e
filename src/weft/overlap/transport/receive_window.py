"""How much data may be in flight to a worker at once.

[Note: window]  With P workers, each one's network card receives from P-1 others.  By default, TCP fills the queue in
front of that card as far as its buffers allow, a sender with more data in the queue gets more of the link, and a
collective ends with its slowest message.  A ring has one sender per receiver and avoids this, but costs P-1 latencies.

So each receiver offers all senders together only a few milliseconds of the link.  Every sender then has the same amount
in flight, waits equally long in the same queue, and gets an equal share.  Four hosts, 207 Mb/s, 15 MB each way: the
minimum is 580 ms; without a window it took 680 to 790 ms, with it 620 to 640 ms, as with gloo's ring
(docs/design/receive-window.md).  The window is far larger than a local network needs to stay busy; where it might not
be, no window is set.

[Note: held]  A window that has grown cannot shrink at once: what was offered may still be sent, and what does not fit
into a smaller buffer is dropped.  Nothing follows the end of a message, so its sender notices only by a timeout, 0.2 or
1.1 s later.  So windows are held at the smallest size from the start, and let go or widened once the link is measured.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from collections.abc import Callable, Iterable

from weft.perf.link import Link

# With less, a busy core becomes the limit instead of the link: 8 hosts took 1750 ms per step with 32 KB, 1680 with
# 64 KB, and 1800 to 1870 without a limit.
_MIN_BYTES = 64 << 10
# Every Linux allows this by default.  A link that needs more is so fast that its queue is short, or so long that TCP's
# own window search serves it better.
_MAX_BYTES = 200_000
# Link time, for all senders together: about as long as a network thread waits for a busy core.
_TIME_S = 3e-3
# Latencies that must fit into the window, so that it does not limit a link with a long round trip.
_NUM_LATENCIES = 4

# A longer round trip (first measured by TCP's handshake) is not that of a local network: the smallest window would slow
# down its first step.
_MAX_LOCAL_RTT_S = 5e-3
# Linux names: which buffer sizes the user has set, and where `struct tcp_info` has the round trip in microseconds.
_SO_BUF_LOCK = 72
_SOCK_RCVBUF_LOCK = 2
_RTT_OFFSET = 68

# (file descriptor, inode): a descriptor alone may be another socket by the time we use it
Connection = tuple[int, int]


def window_bytes(num_workers: int, link: Link) -> int | None:
    """The window a worker offers each of the others; None where TCP does better on its own.

    >>> window_bytes(5, Link(alpha_s=0.2e-3, beta_s_per_byte=8e-9))  # 1 Gb/s
    93750
    >>> window_bytes(2, Link(alpha_s=0.2e-3, beta_s_per_byte=8e-9)) is None  # one sender has no competitor
    True
    >>> window_bytes(5, Link(alpha_s=60e-3, beta_s_per_byte=8e-9)) is None  # as fast, but far away
    True
    """
    if num_workers < 3 or link.beta_s_per_byte == 0.0:
        return None
    total = max(_TIME_S, _NUM_LATENCIES * link.alpha_s) / link.beta_s_per_byte
    window = max(_MIN_BYTES, int(total) // (num_workers - 1))
    return window if window <= _MAX_BYTES else None


def tcp_connections() -> set[Connection]:
    """The open sockets of this process; empty on systems other than Linux."""
    found = set()
    with contextlib.suppress(OSError):
        for name in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):  # a descriptor may close in the meantime
                kind, _, inode = os.readlink(f"/proc/self/fd/{name}").partition(":")
                if kind == "socket" and _is_connected_tcp(int(name)):
                    found.add((int(name), int(inode.strip("[]"))))
    return found


def hold_window(connections: Iterable[Connection]) -> None:
    """Offer little until the link is measured; see [Note: held].  Not before Linux 5.14, which could not undo it."""

    def hold(connection: socket.socket) -> None:
        connection.getsockopt(socket.SOL_SOCKET, _SO_BUF_LOCK)  # raises if unknown
        if is_local(connection):
            _limit(connection, _MIN_BYTES)

    change_sockets(connections, hold)


def limit_window(connections: Iterable[Connection], num_bytes: int) -> None:
    """Limit what those still open offer their senders."""
    change_sockets(connections, lambda connection: _limit(connection, num_bytes))


def release_window(connections: Iterable[Connection]) -> None:
    """Let TCP find the window."""

    def release(connection: socket.socket) -> None:
        locks = connection.getsockopt(socket.SOL_SOCKET, _SO_BUF_LOCK)
        connection.setsockopt(socket.SOL_SOCKET, _SO_BUF_LOCK, locks & ~_SOCK_RCVBUF_LOCK)

    change_sockets(connections, release)


def is_local(connection: socket.socket) -> bool:
    """Whether its round trip is that of a local network."""
    info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _RTT_OFFSET + 4)
    return int(struct.unpack_from("I", info, _RTT_OFFSET)[0]) <= 1e6 * _MAX_LOCAL_RTT_S


def _limit(connection: socket.socket, num_bytes: int) -> None:
    # Not TCP_WINDOW_CLAMP: the kernel raises it again as data arrives.  A fixed buffer size stays.
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, num_bytes)


def change_sockets(connections: Iterable[Connection], change: Callable[[socket.socket], None]) -> None:
    """Change those still open.  If it is refused, only speed is affected."""
    for number, _ in tcp_connections().intersection(connections):
        with contextlib.suppress(OSError), _borrowed(number) as connection:
            change(connection)


def _is_connected_tcp(number: int) -> bool:
    with _borrowed(number) as connection:
        if connection.family not in (socket.AF_INET, socket.AF_INET6) or connection.type != socket.SOCK_STREAM:
            return False
        connection.getpeername()  # raises for a listening socket
        return True


def _borrowed(number: int) -> socket.socket:
    """A socket object with a duplicated descriptor, so that closing it leaves the original open."""
    return socket.socket(fileno=os.dup(number))
