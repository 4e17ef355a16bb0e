"""Jobs without a controller: `weft run`, which its user starts again when it was killed."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import psutil
from tests.faults.forked import Forked
from tests.faults.own_disk import obey_permissions
from tests.faults.violation import Violation, text_of
from tests.hang_limit import HANG_S

from weft.crossover.lease_launch import SOCKET_NAME, status
from weft.errors import LeaseError

SCRIPT = Path(__file__).with_name("ledger_job.py")
STEP_S = 0.02
_POLL_S = 0.02


class Run:
    """One job: `weft run --max-restarts 1000 ledger_job.py`, sharing its device with other such runs or not."""

    def __init__(self, name: str, num_samples: int, folder: Path, checkpoints: Path, lease_home: Path | None) -> None:
        self.name, self.num_samples, self._folder = name, num_samples, folder
        self._checkpoints, self._lease_home = checkpoints, lease_home
        self._num_starts = 0
        self.process = self._start()

    @property
    def shares(self) -> bool:
        return self._lease_home is not None

    @property
    def is_over(self) -> bool:
        return self.process.poll() is not None

    def _start(self) -> Forked:
        self._num_starts += 1
        # A run counts its attempts from 0: the same job, started again by hand, needs another name in the diary.
        environment = {"WEFT_JOB_ID": f"{self.name}.{self._num_starts}", "WEFT_HOME": str(self._lease_home)}
        options = ["--workers", "1", "--cold", "--max-restarts", "1000", "--checkpoint-dir", str(self._checkpoints)]
        script = [str(SCRIPT), str(self.num_samples), str(STEP_S), str(self._folder)]

        def main() -> int:
            obey_permissions()
            os.environ.update(environment)
            from weft.cli import main as weft

            weft(["run", *options, *(["--share"] if self.shares else []), *script])
            return 0

        return Forked(main, self._log)

    @property
    def _log(self) -> Path:
        return self._folder / f"{self.name}.log"

    def pools(self) -> list[psutil.Process]:
        return [one for one in self._below() if "weft.engines.pool" in _words(one)]

    def workers(self) -> list[psutil.Process]:
        return [one for one in self._below() if str(SCRIPT) in _words(one)]

    def processes(self) -> list[psutil.Process]:
        """All of it, `weft run` itself first."""
        return [] if self.is_over else [psutil.Process(self.process.pid), *self._below()]

    def _below(self) -> list[psutil.Process]:
        try:
            return [] if self.is_over else psutil.Process(self.process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []

    def kill(self) -> None:
        """SIGKILL `weft run`: all its processes must end with it, and the user starts it again."""
        processes = self.processes()
        if not processes:
            return
        processes[0].kill()
        self.process.wait(HANG_S)
        if left := psutil.wait_procs(processes[1:], timeout=HANG_S)[1]:
            raise Violation(f"{self.name} was killed and left processes behind: {[_words(one) for one in left]}")
        self.process = self._start()

    def wait_for_worker(self) -> None:
        """Until a worker takes samples, or all are taken."""
        start = f"start {self.name}.{self._num_starts} "
        deadline_s = time.monotonic() + HANG_S
        while start not in text_of(self._folder / "diary") and not self.is_over:
            if time.monotonic() > deadline_s:
                raise Violation(f"{self.name} does not start: {text_of(self._log)[-2000:]}")
            time.sleep(_POLL_S)

    def check(self) -> None:
        """It runs, or has done all."""
        if self.is_over and self.process.returncode != 0:
            raise Violation(f"{self.name} ended with {self.process.returncode}: {text_of(self._log)[-2000:]}")

    def check_end(self) -> None:
        """It ends, and has seen each sample exactly once."""
        try:
            self.process.wait(HANG_S)
        except TimeoutError as error:
            raise Violation(f"{self.name} does not end: {text_of(self._log)[-2000:]}") from error
        self.check()
        ledger = json.loads(text_of(self._folder / f"ledger-{self.name}.json") or "null")
        if ledger != [1] * self.num_samples:
            raise Violation(f"{self.name} has not seen each of its {self.num_samples} samples exactly once: {ledger}")


def lease_server(folder: Path) -> tuple[psutil.Process | None, int]:
    """The lease server below ``folder``, and how many jobs use it."""
    try:
        answer = status(folder / SOCKET_NAME)
        return psutil.Process(int(answer["pid"])), sum(len(device["jobs"]) for device in answer["devices"].values())
    except (LeaseError, psutil.NoSuchProcess):
        return None, 0


def _words(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []
