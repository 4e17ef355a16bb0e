"""Passes workers' reports on to the controller's channel, many in one datagram.

A datagram socket holds few messages (ten by default on Linux), whatever their size: with one datagram per report, or
even per node, most would be lost as soon as the controller is busy for a moment.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections import deque
from collections.abc import Iterable
from pathlib import Path

MAX_DATAGRAM_BYTES = 60_000
"""The controller reads up to 64 KiB."""
MAX_WAIT_S = 1.0
"""After this, a controller that does not keep up, or is gone, misses the datagram: newer reports follow soon."""
_MAX_WAITING = 50_000
_TRY_AGAIN_S = 0.005


class ReportRelay:
    """One socket for the reports of all nodes; used in one event loop."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        self._waiting: deque[bytes] = deque()
        self._sending: asyncio.Task[None] | None = None
        self.num_missed = 0

    def pass_on(self, reports: Iterable[bytes]) -> None:
        """Queue reports for sending; returns immediately."""
        self._waiting.extend(reports)
        while len(self._waiting) > _MAX_WAITING:
            self._waiting.popleft()
            self.num_missed += 1
        if self._waiting and (self._sending is None or self._sending.done()):
            self._sending = asyncio.get_running_loop().create_task(self._send_all())

    async def idle(self) -> None:
        """Wait until everything has been sent."""
        if self._sending is not None:
            await self._sending

    def close(self) -> None:
        self._socket.close()

    async def _send_all(self) -> None:
        # Resolved: the folder may be a link, because the path to a socket must be short.
        path = str((self._home / "run").resolve() / "channel.sock")
        while self._waiting:
            lines = taken(self._waiting)
            datagram, latest_s = b"\n".join(lines), time.monotonic() + MAX_WAIT_S
            while not self._sent(datagram, path):
                if time.monotonic() > latest_s:
                    self.num_missed += len(lines)
                    break
                await asyncio.sleep(_TRY_AGAIN_S)

    def _sent(self, datagram: bytes, path: str) -> bool:
        try:
            self._socket.sendto(datagram, path)
        except (BlockingIOError, ConnectionError, FileNotFoundError):
            return False
        return True


def taken(waiting: deque[bytes]) -> list[bytes]:
    """The oldest reports, as many as one datagram holds, but at least one.

    >>> taken(deque([b"{}", b"{}"]))
    [b'{}', b'{}']
    """
    lines = [waiting.popleft()]
    num_bytes = len(lines[0])
    while waiting and num_bytes + 1 + len(waiting[0]) <= MAX_DATAGRAM_BYTES:
        lines.append(waiting.popleft())
        num_bytes += 1 + len(lines[-1])
    return lines
