"""One attempt as the engine sees it: what its files say, and what of that was told already."""

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
    """Everything but the last fields can be read again after the controller was away."""

    name: str
    """Of its order."""
    job_id: str
    attempt: int
    files: AttemptFolder
    num_tries: int = 0
    told_start: bool = False
    told_end: bool = False
    failed_because: str = ""
    """Why nobody claimed it when it was last tried."""
    trouble: str = ""
    """What keeps it from going on, as its keeper says."""
    our_trouble: str = ""
    """What kept us from looking at it."""

    _keeper: Process | None = None

    def keeper(self) -> Process | None:
        """Who has the claim; None while nobody has."""
        if self._keeper is None:
            self._keeper = records.read_claim(self.files.claim)
        return self._keeper

    def status(self) -> Status:
        return records.read_status(self.files.status)

    def is_over(self) -> bool:
        return self.told_end or self.status().fate is not None

    def resolve(self, fate: Fate, exit_code: int, reason: str) -> bool:
        """End an attempt that was never started, by having its claim ourselves.  False if somebody was faster."""
        if not records.write_once(self.files.claim, asdict(Process.this())):
            return False
        self._end(fate, exit_code, reason)
        return True

    def lost(self, keeper: Process, status: Status) -> Status:
        """The end of an attempt whose keeper is gone; written down if it can be, else whoever looks again finds it."""
        reason = f"its keeper (process {keeper.pid}) ended without a word, and the workers with it"
        folder = "" if self.files.path.is_dir() else f"its folder {self.files.path} is gone"
        hint = (
            folder
            or self._last_words_of_keeper()
            or "killed from outside, or by the kernel when memory ran out? (`dmesg` tells)"
        )
        ended = status.ended(time.time(), Fate.LOST, 1, f"{reason}: {hint}")
        with contextlib.suppress(OSError):
            records.write(self.files.status, ended.to_json())
        return ended

    def _end(self, fate: Fate, exit_code: int, reason: str) -> None:
        records.write(self.files.status, self.status().ended(time.time(), fate, exit_code, reason).to_json())

    def _last_words_of_keeper(self) -> str:
        lines = read_end(self.files.keeper_log, _TAIL_BYTES).decode(errors="replace").splitlines()
        own_words = [line for line in lines if line.strip() and not line.startswith("weft: ")]
        return own_words[-1] if own_words else ""


def stopped_in_words(keeper: Process | None, zygote_pid: int | None) -> str:
    """Who stands still, stopped by a signal, so that an attempt with this keeper, or none yet, does."""
    pid = zygote_pid if keeper is None else keeper.pid
    stopped = None if pid is None else process_tree.stopped_among(pid)
    if stopped is None or (keeper is None and stopped != zygote_pid):
        return ""
    what = "the process that starts workers" if keeper is None else "a process that looks after its workers"
    return f"{what} ({stopped}) was stopped by a signal: `kill -CONT {stopped}` lets it go on"
