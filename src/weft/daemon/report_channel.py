"""The controller's end of the job channel: step reports in, stop requests out.

A unix datagram socket in a folder that only its owner can enter.  The kernel says who sent each datagram; those from
other users are dropped, and so are those that do not name the current attempt of a job.  Nothing here ever blocks.
"""

from __future__ import annotations

import array
import contextlib
import json
import os
import socket
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from weft.core.plain_json import count, parse_object, real

_CREDENTIALS = struct.Struct("3i")
_MAX_MESSAGE_BYTES = 1 << 16
_MAX_PER_CALL = 1000
_STOP = json.dumps({"stop": True}).encode()

Address = str | bytes


@dataclass(frozen=True, slots=True)
class WorkerReport:
    """One worker's progress.  The numbers are checked; the sender's identity is for the caller to check."""

    job_id: str
    attempt: int
    rank: int
    world_size: int
    step: int
    step_s: float
    total_steps: int | None = None
    epoch: int = 0
    exposed_s: float = 0.0
    loss: float | None = None
    can_resume: bool | None = None
    """Whether the job can resume after a stop, if known."""
    memory_bytes: int = 0
    takes_turns: bool = False
    """Whether it could share its devices: only then are all its waits for the network measured."""


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

    def receive(self, is_stopping: Callable[[str, int], bool | None]) -> Iterator[WorkerReport]:
        """Pending reports.

        ``is_stopping(job, attempt)``: whether that attempt was asked to stop; ``None`` if it is not the current one, so
        that the report is late.  Workers that should stop are asked again, in case the first request was lost.
        """
        for _ in range(_MAX_PER_CALL):
            try:
                data, ancillary, _, address = self._socket.recvmsg(
                    _MAX_MESSAGE_BYTES, socket.CMSG_SPACE(_CREDENTIALS.size)
                )
            except BlockingIOError:
                return
            report = parse_report(data) if _sender_uid(ancillary) == os.getuid() else None
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
        # It is gone or its buffer is full: it is asked again when it reports, and the engine also sends a signal.
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


def parse_report(data: bytes) -> WorkerReport | None:
    """A report, or ``None`` for anything else.

    >>> parse_report(b'{"kind":"step","job_id":"a","attempt":1,"rank":0,"world_size":1,"step":3,"step_s":0.1}').step
    3
    """
    message = parse_object(data)
    if message is None or message.get("kind") != "step" or not isinstance(message.get("job_id"), str):
        return None
    metrics = message.get("metrics")
    can_resume = message.get("can_resume")
    numbers = {name: count(message.get(name)) for name in ("attempt", "rank", "world_size", "step")}
    step_s = real(message.get("step_s"))
    if step_s is None or None in numbers.values():
        return None
    return WorkerReport(
        job_id=message["job_id"],
        attempt=numbers["attempt"] or 0,
        rank=numbers["rank"] or 0,
        world_size=numbers["world_size"] or 0,
        step=numbers["step"] or 0,
        step_s=max(step_s, 0.0),
        total_steps=count(message.get("total_steps")),
        epoch=count(message.get("epoch")) or 0,
        exposed_s=min(max(real(message.get("exposed_s")) or 0.0, 0.0), max(step_s, 0.0)),
        loss=real(metrics.get("loss")) if isinstance(metrics, dict) else None,
        can_resume=can_resume if isinstance(can_resume, bool) else None,
        memory_bytes=count(message.get("memory_bytes")) or 0,
        takes_turns=message.get("takes_turns") is True,
    )


def _sender_uid(ancillary: list[tuple[int, int, bytes]]) -> int | None:
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_CREDENTIALS and len(data) >= _CREDENTIALS.size:
            uid: int = _CREDENTIALS.unpack_from(data)[1]
            return uid
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            for descriptor in array.array("i", data[: len(data) // 4 * 4]):
                os.close(descriptor)
    return None
