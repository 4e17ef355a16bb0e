"""Which congestion control carries messages.

[Note: BBR]  A connection carries a burst in one direction, then nothing for most of a step.  Where BBR is the system's
default, every fourth step took 45 to 55 ms longer (two workers, 134 Mb/s, buckets of 256 KB; 0.3 s a step), with a TCP
loss probe each time; with CUBIC or Reno, none did.  On a long line, BBR may be the better choice: it stays.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterable

from weft.overlap.transport.receive_window import Connection, change_sockets

_MAX_RTT_S = 5e-3
_RTT_OFFSET = 68  # microseconds, in Linux's `struct tcp_info`


def avoid_bbr(connections: Iterable[Connection]) -> None:
    """Use CUBIC instead, on connections with a short round trip."""

    def change(connection: socket.socket) -> None:
        name = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
        info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _RTT_OFFSET + 4)
        if name.startswith(b"bbr") and struct.unpack_from("I", info, _RTT_OFFSET)[0] <= 1e6 * _MAX_RTT_S:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"cubic")

    change_sockets(connections, change)
