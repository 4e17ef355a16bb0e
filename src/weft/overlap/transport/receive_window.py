"""How much may be on its way to a worker at once.

[Note: window]  With P workers each one's card receives from P-1 others.  Left to itself TCP fills the queue in front of
that card with as much as its buffers hold, and whoever has more in the queue gets more of the link.  A collective ends
with its slowest message, so the uneven shares are lost time: four hosts, 207 Mb/s, 15 MB each way took 680 to 790 ms
where the link needs 580.  A ring has one sender per receiver and no such trouble, but P-1 latencies.

So each receiver offers all senders together only a few milliseconds of the link.  Every sender then has equally much
under way, waits equally long in the same queue and gets an equal share: 620 to 640 ms, what gloo's ring takes.  The
window is far above what a local network needs to be kept busy, and a long round trip widens it.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterable

from weft.perf.link import Link

_LEAST_BYTES = 256 << 10
_LEAST_BYTES_PER_SENDER = 32 << 10
# Of the link: longer than a busy core leaves a network thread waiting.
_TIME_S = 5e-3
# Start-up latencies that fit into the window, lest it be what limits a link with a long round trip.
_NUM_LATENCIES = 4

# (file descriptor, inode): a number alone may be another socket's by the time we use it
Connection = tuple[int, int]


def window_bytes(num_workers: int, link: Link) -> int | None:
    """What a worker offers each of the others; None where there is only one.

    >>> window_bytes(5, Link(alpha_s=1e-3, beta_s_per_byte=8e-9)) // 1024  # 1 Gb/s
    152
    >>> window_bytes(5, Link(alpha_s=60e-3, beta_s_per_byte=8e-9)) // 1024  # as fast, but far away
    7324
    >>> window_bytes(2, Link(alpha_s=1e-3, beta_s_per_byte=8e-9)) is None
    True
    """
    if num_workers < 3 or link.beta_s_per_byte == 0.0:
        return None
    total = max(_LEAST_BYTES, max(_TIME_S, _NUM_LATENCIES * link.alpha_s) / link.beta_s_per_byte)
    return max(_LEAST_BYTES_PER_SENDER, int(total) // (num_workers - 1))


def tcp_connections() -> set[Connection]:
    """The open ones of this process; none where there is no Linux to tell."""
    found = set()
    with contextlib.suppress(OSError):
        for name in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):  # a descriptor may close while we look
                kind, _, inode = os.readlink(f"/proc/self/fd/{name}").partition(":")
                if kind == "socket" and _is_connected_tcp(int(name)):
                    found.add((int(name), int(inode.strip("[]"))))
    return found


def limit_window(connections: Iterable[Connection], num_bytes: int) -> None:
    """Those still open offer their senders no more than this.  Where it is not allowed nothing changes but speed."""
    for number, _ in tcp_connections().intersection(connections):
        with contextlib.suppress(OSError), _borrowed(number) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_WINDOW_CLAMP, num_bytes)


def _is_connected_tcp(number: int) -> bool:
    with _borrowed(number) as connection:
        if connection.family not in (socket.AF_INET, socket.AF_INET6) or connection.type != socket.SOCK_STREAM:
            return False
        connection.getpeername()  # raises for one that listens
        return True


def _borrowed(number: int) -> socket.socket:
    """A socket object on a descriptor of its own, so that closing it leaves the owner's open."""
    return socket.socket(fileno=os.dup(number))
