"""Which congestion control carries messages.

[Note: BBR]  A connection carries a burst in one direction, then nothing for most of a step.  Where BBR is the system's
default, one step in three to five took longer, mostly by 40 to 60 ms and with a TCP loss probe (two workers, 134 Mb/s,
buckets of 256 KB; 0.3 s a step); with CUBIC or Reno, none of 44 did.  On a long line, BBR may be the better choice.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable

from weft.overlap.transport.receive_window import Connection, change_sockets, is_local


def avoid_bbr(connections: Iterable[Connection]) -> None:
    """Use CUBIC instead, on connections with a short round trip."""

    def change(connection: socket.socket) -> None:
        name = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
        if name.startswith(b"bbr") and is_local(connection):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"cubic")

    change_sockets(connections, change)
