"""How much may be on its way to a worker at once.

[Note: window]  With P workers each one's card receives from P-1 others.  Left to itself TCP fills the queue in front of
that card as far as its buffers go, whoever has more in the queue gets more of the link, and a collective ends with its
slowest message.  A ring has one sender per receiver and no such trouble, but P-1 latencies.

So each receiver offers all senders together only a few milliseconds of the link.  Every sender then has equally much
under way, waits equally long in the same queue and gets an equal share.  Four hosts, 207 Mb/s, 15 MB each way: 580 ms
are needed, 680 to 790 were taken, now 620 to 640, as by gloo's ring (docs/design/receive-window.md).  The window is far
above what a local network needs to be kept busy; where it might not be there is none.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterable

from weft.perf.link import Link

# Less makes a busy core, not the link, the limit: 8 hosts with 32 KB took 1750 ms a step, with 64 KB 1680, without a
# limit 1800 to 1870.
_LEAST_BYTES = 64 << 10
# What every Linux allows without asking.  Who needs more has a link so fast that its queue is short, or so long that
# TCP's own search for the right window is what it needs.
_MOST_BYTES = 200_000
# Of the link, for all senders together: about as long as a busy core leaves a network thread waiting.
_TIME_S = 3e-3
# Start-up latencies that fit into the window, lest it be what limits a link with a long round trip.
_NUM_LATENCIES = 4

# (file descriptor, inode): a number alone may be another socket's by the time we use it
Connection = tuple[int, int]


def window_bytes(num_workers: int, link: Link) -> int | None:
    """What a worker offers each of the others; None where that is better left to TCP.

    >>> window_bytes(5, Link(alpha_s=0.2e-3, beta_s_per_byte=8e-9))  # 1 Gb/s
    93750
    >>> window_bytes(2, Link(alpha_s=0.2e-3, beta_s_per_byte=8e-9)) is None  # one sender has no rival
    True
    >>> window_bytes(5, Link(alpha_s=60e-3, beta_s_per_byte=8e-9)) is None  # as fast, but far away
    True
    """
    if num_workers < 3 or link.beta_s_per_byte == 0.0:
        return None
    total = max(_TIME_S, _NUM_LATENCIES * link.alpha_s) / link.beta_s_per_byte
    window = max(_LEAST_BYTES, int(total) // (num_workers - 1))
    return window if window <= _MOST_BYTES else None


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
            # Not TCP_WINDOW_CLAMP: the kernel raises that again as data comes.  A set buffer stays.
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, num_bytes)


def _is_connected_tcp(number: int) -> bool:
    with _borrowed(number) as connection:
        if connection.family not in (socket.AF_INET, socket.AF_INET6) or connection.type != socket.SOCK_STREAM:
            return False
        connection.getpeername()  # raises for one that listens
        return True


def _borrowed(number: int) -> socket.socket:
    """A socket object on a descriptor of its own, so that closing it leaves the owner's open."""
    return socket.socket(fileno=os.dup(number))
