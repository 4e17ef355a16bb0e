"""Where the local engine keeps its state.

<home>/engine/lock              held by the controller that uses this home
<home>/engine/nudges            a fifo: keepers announce news here
<home>/engine/zygote.log        output of the process that forks keepers
<home>/engine/orders/J@N.json   one file per attempt that is not forgotten: what to start
<home>/jobs/J/attempts/N/       one folder per attempt, until the job is purged:
    rank0.out rank0.err ...         what its workers printed
    claim.json                      its keeper; created once, so that it is started once
    status.json                     its workers, and how it ended
    stop, kill                      present once this was requested
    keeper.log                      output of its keeper
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from urllib.parse import quote, unquote

from weft.errors import EngineError

MAX_NAME_LENGTH = 200


class Folders:
    """The paths below one home."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.engine = home / "engine"
        self.orders = self.engine / "orders"
        self.nudges = self.engine / "nudges"

    def order(self, job_id: str, attempt: int) -> Path:
        return self.orders / f"{_quoted(job_id)}@{attempt}.json"

    def attempt(self, job_id: str, attempt: int) -> AttemptFolder:
        return AttemptFolder(self.home / "jobs" / _quoted(job_id) / "attempts" / str(attempt))

    def ordered(self) -> list[tuple[str, int]]:
        """Attempts that were ordered and not forgotten."""
        names = sorted(file.name.removesuffix(".json") for file in self.orders.glob("*@*.json"))
        parts = [name.rpartition("@") for name in names]
        return [(unquote(job), int(attempt)) for job, _, attempt in parts if attempt.isascii() and attempt.isdigit()]


class AttemptFolder:
    """The files of one attempt."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.claim = path / "claim.json"
        self.status = path / "status.json"
        self.stop = path / "stop"
        self.kill = path / "kill"
        self.keeper_log = path / "keeper.log"


def _quoted(job_id: str) -> str:
    """A file name for this id that cannot be a path; ordinary ids are unchanged.

    >>> _quoted("resnet-7"), _quoted("../a b")
    ('resnet-7', '%2E.%2Fa%20b')
    """
    name = quote(job_id, safe="", errors="surrogatepass")
    if name.startswith("."):
        name = "%2E" + name[1:]
    if not 0 < len(name) <= MAX_NAME_LENGTH:
        raise EngineError(f"job id {job_id[:40]!r}: expected 1 to {MAX_NAME_LENGTH} characters, mostly plain letters")
    return name


class HomeLock:
    """One engine per home: two would read each other's nudges.  The kernel releases it when this process ends."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(self._file, 32).decode(errors="replace").strip() or "unknown"
            os.close(self._file)
            raise EngineError(
                f"{path.parent} is in use by process {holder}: only one controller can use it. "
                "Stop that one with `weft down`, or set a different WEFT_HOME"
            ) from None
        os.truncate(self._file, 0)
        os.pwrite(self._file, str(os.getpid()).encode(), 0)

    def release(self) -> None:
        os.close(self._file)
