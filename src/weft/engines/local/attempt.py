"""One attempt as the engine sees it: what its files say, and what of that was told already."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass

from weft.core.events import Fate
from weft.engines.local import records
from weft.engines.local.folders import AttemptFolder
from weft.engines.local.process import Process
from weft.engines.local.records import Status


@dataclass
class Attempt:
    """Everything but the last three fields can be read again after the controller was away."""

    name: str
    """Of its order."""
    job_id: str
    attempt: int
    files: AttemptFolder
    num_tries: int = 0
    told_start: bool = False
    told_end: bool = False

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

    def write_lost(self) -> None:
        """Write down what a keeper that is gone could not."""
        said = self._last_words_of_keeper()
        keeper = self.keeper()
        pid = "unknown" if keeper is None else keeper.pid
        reason = f"its keeper (process {pid}) ended without a word, and the workers with it"
        hint = said or "killed from outside, or by the kernel when memory ran out? (`dmesg` tells)"
        self._end(Fate.LOST, 1, f"{reason}: {hint}")

    def _end(self, fate: Fate, exit_code: int, reason: str) -> None:
        records.write(self.files.status, self.status().ended(time.time(), fate, exit_code, reason).to_json())

    def _last_words_of_keeper(self) -> str:
        try:
            lines = self.files.keeper_log.read_text(errors="replace").splitlines()
        except FileNotFoundError:
            return ""
        own_words = [line for line in lines if line.strip() and not line.startswith("weft: ")]
        return own_words[-1] if own_words else ""
