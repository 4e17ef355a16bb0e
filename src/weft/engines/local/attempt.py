"""One attempt as the engine sees it: what its files say, and what has been reported."""

from __future__ import annotations

import contextlib
import time
from dataclasses import asdict, dataclass

from weft.core.events import Fate
from weft.engines import process_tree
from weft.engines.local import records
from weft.engines.local.folders import AttemptFolder
from weft.engines.local.process import Process
from weft.engines.local.records import Status
from weft.engines.regular_file import read_end

_TAIL_BYTES = 1 << 14


@dataclass
class Attempt:
    """A restarted controller can read the first four fields again; the rest exists only in memory."""

    name: str
    """Of its order."""
    job_id: str
    attempt: int
    files: AttemptFolder
    num_tries: int = 0
    start_reported: bool = False
    end_reported: bool = False
    start_failure: str = ""
    """Why its last keeper did not claim it."""
    trouble: str = ""
    """What holds it up, according to its keeper."""
    check_failure: str = ""
    """What keeps the engine from checking it."""

    _keeper: Process | None = None

    def keeper(self) -> Process | None:
        """The process that has the claim, if any."""
        if self._keeper is None:
            self._keeper = records.read_claim(self.files.claim)
        return self._keeper

    def status(self) -> Status:
        return records.read_status(self.files.status)

    def is_over(self) -> bool:
        return self.end_reported or self.status().fate is not None

    def resolve(self, fate: Fate, exit_code: int, reason: str) -> bool:
        """End an attempt that never started by claiming it ourselves.  False if a keeper claimed it first."""
        if not records.write_once(self.files.claim, asdict(Process.this())):
            return False
        records.write(self.files.status, self.status().ended(time.time(), fate, exit_code, reason).to_json())
        return True

    def lost(self, keeper: Process, status: Status) -> Status:
        """The status of an attempt whose keeper died; if it cannot be recorded now, it will be found again later."""
        reason = f"its keeper (process {keeper.pid}) died, and the workers with it"
        hint = "killed from outside, or by the kernel when memory ran out? (see `dmesg`)"
        if not self.files.path.is_dir():
            hint = f"its folder {self.files.path} is gone"
        elif last_words := self._last_words_of_keeper():
            hint = last_words
        ended = status.ended(time.time(), Fate.LOST, 1, f"{reason}: {hint}")
        with contextlib.suppress(OSError):
            records.write(self.files.status, ended.to_json())
        return ended

    def _last_words_of_keeper(self) -> str:
        lines = read_end(self.files.keeper_log, _TAIL_BYTES).decode(errors="replace").splitlines()
        own_words = [line for line in lines if line.strip() and not line.startswith("weft: ")]
        return own_words[-1] if own_words else ""


def stopped_in_words(keeper: Process | None, zygote_pid: int | None) -> str:
    """Which process, stopped by a signal, holds up an attempt with this keeper (or with none yet)."""
    pid = zygote_pid if keeper is None else keeper.pid
    stopped = None if pid is None else process_tree.stopped_among(pid)
    if stopped is None or (keeper is None and stopped != zygote_pid):
        return ""
    what = "the process that starts workers" if keeper is None else "a process that manages its workers"
    return f"{what} ({stopped}) was stopped by a signal: resume it with `kill -CONT {stopped}`"
