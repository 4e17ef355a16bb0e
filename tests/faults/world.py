"""A real controller with real jobs, and what must be true of them after every fault."""

from __future__ import annotations

import contextlib
import enum
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
from tests.faults import shimmed_controller
from tests.faults.forked import Forked
from tests.faults.own_disk import obey_permissions
from tests.faults.runs import Run, lease_server
from tests.faults.violation import Violation, text_of
from tests.hang_limit import HANG_S

from weft.client import Client, NotNowError
from weft.core.job import Launch
from weft.core.status_rows import FINAL_STATES
from weft.core.submission import Submission
from weft.daemon.home import Home
from weft.errors import NoControllerError, WeftError

HERE = Path(__file__).parent
ANSWER_S = 60.0
"""A controller that is up and has not answered by then never will."""
NUM_DEVICES = 2
MAX_RESTARTS = 1000
_POLL_S = 0.02


class Sort(enum.Enum):
    """What a job is made of."""

    PLAIN = "a ledger, no torch"
    SHARING = "the same, and takes turns on its device with another one"
    SESSION = "a real weft.session() on one or two workers"


class World:
    """One home.  ``session``: the engine is warm, for jobs of a real :func:`weft.session`."""

    def __init__(self, folder: Path, *, session: bool) -> None:
        self.folder, self.home, self._session = folder, Home(folder / "disk" / "home"), session
        self.disk = folder / "disk"
        self.shim = folder / "shim.json"
        self.acknowledged: dict[str, int] = {}
        """Number of samples of every job whose submission was answered."""
        self.runs: list[Run] = []
        self.client = Client(self.home.root, timeout_s=ANSWER_S)
        self.process: Forked | None = None
        self._sharing: set[str] = set()

    def up(self) -> None:
        """Start the controller unless it runs, and wait until it answers."""
        if self.process is not None and self.process.poll() is None and self._answers():
            return
        if self.process is not None:
            self.process.wait(HANG_S)
        options = ("--port", "0", "--devices", str(NUM_DEVICES), "--grace-s", "5", "--hold-s", "0.2")
        arguments = [*options, *(() if self._session else ("--cold",))]

        def main() -> int:
            obey_permissions()
            return shimmed_controller.main(self.shim, self.home.root, arguments)

        self.process = Forked(main, self.folder / "controller.log")
        deadline_s = time.monotonic() + HANG_S
        while not self._answers():
            if self.process.poll() is not None:
                raise Violation(f"the controller does not start: {self.last_words()}")
            if time.monotonic() > deadline_s:
                raise Violation(f"the controller does not answer: {self.last_words()}")
            time.sleep(_POLL_S)

    def _answers(self) -> bool:
        try:
            return self.process is not None and self.client.health()["pid"] == self.process.pid
        except WeftError:
            return False

    def last_words(self) -> str:
        return "\n".join(text_of(self.folder / "controller.log").splitlines()[-15:])

    def submit(self, num_samples: int, step_s: float = 0.02, sort: Sort = Sort.PLAIN) -> None:
        """Submit a job; remembered only if the controller acknowledges it."""
        script = HERE / ("session_job.py" if sort is Sort.SESSION else "ledger_job.py")
        argv = (sys.executable, str(script), str(num_samples), str(step_s), str(self.folder))
        launch = Launch(argv, str(self.folder), max_restarts=MAX_RESTARTS)
        num_workers = 2 if sort is Sort.SESSION else 1
        with contextlib.suppress(NoControllerError, NotNowError):  # nothing was acknowledged
            job_id = self.client.submit(Submission(launch, max_workers=num_workers, may_share=sort is Sort.SHARING))
            self.acknowledged[job_id] = num_samples
            if sort is Sort.SHARING:
                self._sharing.add(job_id)

    def run(self, num_samples: int, *, shares: bool = False) -> Run:
        """A job of `weft run`, whose worker is up."""
        name = f"run{len(self.runs)}"
        lease_home = self.home.sockets if shares else None
        self.runs.append(Run(name, num_samples, self.folder, self.disk / name, lease_home))
        self.runs[-1].wait_for_worker()
        return self.runs[-1]

    # Its processes -------------------------------------------------------------------------------------------------

    def controllers(self) -> list[psutil.Process]:
        return [psutil.Process(self.process.pid)] if self.process and self.process.poll() is None else []

    def zygotes(self) -> list[psutil.Process]:
        return [one for process in self.controllers() for one in process.children() if _is_engine(one, self.home.root)]

    def keepers(self) -> list[psutil.Process]:
        zygotes = {one.pid for one in self.zygotes()}
        return [one for one in self._ours() if one.pid not in zygotes and _is_leader(one)]

    def workers(self) -> list[psutil.Process]:
        found = []
        for keeper in self.keepers():
            with contextlib.suppress(psutil.Error):
                found += keeper.children(recursive=True)
        return found

    def lease_servers(self) -> list[psutil.Process]:
        server, _ = lease_server(self.home.sockets)
        return [] if server is None else [server]

    def everything(self) -> list[psutil.Process]:
        return [*self.controllers(), *self.zygotes(), *self.keepers(), *self.workers(), *self.lease_servers()]

    def _ours(self) -> Iterator[psutil.Process]:
        return (one for one in psutil.process_iter() if _is_engine(one, self.home.root))

    # What must hold ------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """The controller is up: nothing acknowledged is lost, nothing started twice, no device assigned twice."""
        details = self.client.job_details()
        rows = {row["id"]: row for row in details}
        if lost := self.acknowledged.keys() - rows.keys():
            raise Violation(f"acknowledged and lost: {sorted(lost)}")
        if failed := {job_id: row["reason"] for job_id, row in rows.items() if row["state"] in ("FAILED", "CANCELLED")}:
            raise Violation(f"jobs that nobody ended are over: {failed}")
        held: dict[int, list[str]] = {}
        for row in details:
            for device in row["devices"]:
                held.setdefault(device, []).append(row["id"])
        if double := {device: ids for device, ids in held.items() if not self._may_hold(ids)}:
            raise Violation(f"devices assigned twice: {double}")
        lines = [line.split() for line in text_of(self.folder / "diary").splitlines()]
        starts = Counter(tuple(line[1:4]) for line in lines if line[0] == "start")
        if twice := [worker for worker, num in starts.items() if num > 1]:
            raise Violation(f"started twice (job, attempt, rank): {twice}")
        if conflicts := [line for line in lines if line[0] == "conflict"]:
            raise Violation(f"a device was used by two jobs: {conflicts}")
        for run in self.runs:
            run.check()

    def _may_hold(self, job_ids: list[str]) -> bool:
        return len(job_ids) == 1 or (len(job_ids) == 2 and self._sharing.issuperset(job_ids))

    def check_end(self) -> None:
        """Every job ends, and has seen each sample exactly once."""
        rows = self.client.wait(list(self.acknowledged), timeout_s=HANG_S)
        if late := {row["id"]: (row["state"], row["reason"]) for row in rows if row["state"] not in FINAL_STATES}:
            raise Violation(f"jobs that do not end: {late}")
        self.check()
        for job_id, num_samples in self.acknowledged.items():
            ledger: Any = json.loads(text_of(self.folder / f"ledger-{job_id}.json") or "null")
            if ledger != [1] * num_samples:
                raise Violation(f"{job_id} has not seen each of its {num_samples} samples exactly once: {ledger}")
        for run in self.runs:
            run.check_end()

    def close(self) -> None:
        """End the jobs and the controller; the folder is for the caller to remove."""
        with contextlib.suppress(WeftError, psutil.Error):
            left = [row["id"] for row in self.client.jobs() if row["state"] not in FINAL_STATES]
            for job_id in left * 2:
                self.client.cancel(job_id)
            self.client.shutdown(stop_jobs=True)
        with contextlib.suppress(TimeoutError):
            if self.process is not None:
                self.process.wait(10.0)
        _, left_over = psutil.wait_procs(list(self._ours()), timeout=10.0)
        for process in [*self.controllers(), *left_over]:
            with contextlib.suppress(psutil.Error):
                process.kill()
        for process in [*self.lease_servers(), *(one for run in self.runs for one in run.processes())]:
            with contextlib.suppress(psutil.Error):
                process.kill()
        for forked in [self.process, *(run.process for run in self.runs)]:
            if forked is not None:
                forked.wait(HANG_S)


def _is_leader(process: psutil.Process) -> bool:
    try:
        return os.getsid(process.pid) == process.pid
    except OSError:
        return False


def _is_engine(process: psutil.Process, home: Path) -> bool:
    try:
        words = process.cmdline()
    except psutil.Error:
        return False
    return "weft.engines.local.zygote" in words and str(home) in words
