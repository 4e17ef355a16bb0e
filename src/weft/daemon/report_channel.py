"""The controller's end of the job channel: step reports in, stop requests out.

A unix datagram socket in a folder that only its owner can enter.  The kernel says who sent each datagram; those from
other users are dropped, and so are reports that do not name the current attempt of a job.  A datagram may hold several
reports, one per line: the socket's queue is short.  Nothing here ever blocks.
"""

from __future__ import annotations

import array
import contextlib
import json
import os
import socket
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

from weft.core.step_report import MAX_MESSAGE_BYTES, StepReport, parse_report

_CREDENTIALS = struct.Struct("3i")
_MAX_PER_CALL = 1000
_STOP = json.dumps({"stop": True}).encode()

Address = str | bytes


class JobChannel:
    """One socket for all jobs."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._socket = _bound(path)
        self._addresses: dict[tuple[str, int], set[Address]] = {}
        self.num_dropped = 0

    def fileno(self) -> int:
        return self._socket.fileno()

    def bind_again(self) -> None:
        """Replace the socket, whose file was deleted.  Workers connected to the old one reconnect."""
        old, self._socket = self._socket, _bound(self._path)
        old.close()

    def receive(self, is_stopping: Callable[[str, int], bool | None]) -> Iterator[StepReport]:
        """Pending reports.

        ``is_stopping(job, attempt)``: whether that attempt was asked to stop; ``None`` if it is not the current one, so
        that the report is late.  Workers that should stop are asked again, in case the first request was lost.
        """
        num_taken = 0
        while num_taken < _MAX_PER_CALL:
            try:
                data, ancillary, _, address = self._socket.recvmsg(
                    MAX_MESSAGE_BYTES, socket.CMSG_SPACE(_CREDENTIALS.size)
                )
            except BlockingIOError:
                return
            is_ours = _sender_uid(ancillary) == os.getuid()
            for line in data.split(b"\n"):
                num_taken += 1
                report = parse_report(line) if is_ours else None
                stopping = is_stopping(report.job_id, report.attempt) if report else None
                if report is None or stopping is None:
                    self.num_dropped += 1
                    continue
                if address:
                    self._addresses.setdefault((report.job_id, report.attempt), set()).add(address)
                    if stopping:
                        self._send_stop(address)
                yield report

    def stop(self, job_id: str, attempt: int) -> None:
        """Ask every worker of the attempt that has ever reported to stop after a checkpoint."""
        for address in self._addresses.get((job_id, attempt), ()):
            self._send_stop(address)

    def forget(self, job_id: str, attempt: int) -> None:
        """The attempt is over."""
        self._addresses.pop((job_id, attempt), None)

    def close(self) -> None:
        self._socket.close()
        with contextlib.suppress(FileNotFoundError):
            self._path.unlink()

    def _send_stop(self, address: Address) -> None:
        # If it is gone or its buffer is full, it is asked again when it reports, and the engine also sends a signal.
        with contextlib.suppress(OSError):
            self._socket.sendto(_STOP, address)


def _bound(path: Path) -> socket.socket:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    with contextlib.suppress(FileNotFoundError):
        path.unlink()  # left by a killed controller; we hold the home's lock, so it is not in use
    mask = os.umask(0o177)
    try:
        made.bind(str(path))
    except OSError:
        made.close()
        raise
    finally:
        os.umask(mask)
    return made


def _sender_uid(ancillary: list[tuple[int, int, bytes]]) -> int | None:
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_CREDENTIALS and len(data) >= _CREDENTIALS.size:
            uid: int = _CREDENTIALS.unpack_from(data)[1]
            return uid
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            for descriptor in array.array("i", data[: len(data) // 4 * 4]):
                os.close(descriptor)
    return None
