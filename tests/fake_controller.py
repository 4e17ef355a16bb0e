"""A controller in memory, for everything that stands before the real one: routes, client, command line."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import uvicorn

from weft.control.queue_order import QueuePlace
from weft.control.state import Job, JobState
from weft.core.job import Launch
from weft.core.status_rows import HistoryRow, OutlookRow, PlanRow, PurgeRow, WhatifRow
from weft.core.step_report import Progress
from weft.core.submission import Submission
from weft.daemon.api.app import make_app
from weft.daemon.api.guard import BODY_S
from weft.daemon.attempt_bars import AttemptBar
from weft.daemon.connections import ConnectionPatience, server_config
from weft.daemon.contract import (
    ConflictError,
    Decision,
    LogStream,
    NodeStatus,
    NodeView,
    Sentence,
    UnknownJobError,
)
from weft.daemon.home import Home, Record
from weft.daemon.ids import is_id, new_id
from weft.daemon.listeners import Reserve, listen_local, listen_unix
from weft.sim.queue_forecast import Question

TOKEN = "the-token-of-the-fake-controller"


class FakeLog:
    def __init__(self, data: bytes, attempt: int, rank: int, is_endless: Callable[[], bool] = lambda: False) -> None:
        self.path, self.attempt, self.rank = Path("/nowhere"), attempt, rank
        self._data = data
        self._is_endless = is_endless

    def read(self, max_bytes: int = 65536) -> bytes:
        data, self._data = self._data[:max_bytes], self._data[max_bytes:]
        return data

    def skip_to_last(self, num_bytes: int) -> int:
        skipped = max(len(self._data) - num_bytes, 0)
        self._data = self._data[skipped:]
        return skipped

    async def follow(self) -> AsyncIterator[bytes]:
        while data := self.read(7):
            yield data
            await asyncio.sleep(0)
        while self._is_endless():
            yield b"."
            await asyncio.sleep(0.05)

    def close(self) -> None:
        self._data = b""


class FakeController:
    """Jobs stay in the state a test puts them in; every id asked for is remembered."""

    policy_name = "balanced"

    def __init__(self) -> None:
        self.by_id: dict[str, Job] = {}
        self.output: dict[tuple[str, int, LogStream], bytes] = {}
        self.asked: list[str] = []
        self.made_decisions: list[Decision] = []
        self.places: dict[str, QueuePlace] = {}
        self.went_down: list[bool] = []
        self.bars: list[AttemptBar] = []
        self.failure: Exception | None = None
        self.endless = False
        """Whether jobs keep writing to their logs."""

    def add(self, **changes: object) -> Job:
        """A job as a test wants it."""
        submission = Submission(Launch(("python", "train.py"), "/tmp"), name="train.py", max_workers=4)
        return self.change(self.submit(submission), **changes)

    def change(self, job_id: str, **changes: object) -> Job:
        """Change fields of a job, or of its progress or spec, by name."""
        job = self.by_id[job_id]
        progress = {name: changes.pop(name) for name in Progress.__slots__ if name in changes}
        changes["progress"] = dataclasses.replace(job.progress, **progress)  # type: ignore[arg-type]
        if "submitted_s" in changes:
            changes["spec"] = dataclasses.replace(job.spec, submitted_s=changes.pop("submitted_s"))  # type: ignore[arg-type]
        self.by_id[job_id] = dataclasses.replace(job, **changes)  # type: ignore[arg-type]
        return self.by_id[job_id]

    def submit(self, submission: Submission) -> str:
        if self.failure is not None:
            raise self.failure
        job_id = new_id(self.by_id)
        number = len(self.by_id)
        self.by_id[job_id] = Job(
            submission.spec(job_id, float(number)),
            number,
            submission.name,
            submission.launch,
            progress=Progress(0, submission.total_steps),
            reason="waits for devices",
        )
        return job_id

    def cancel(self, job_id: str, reason: str = "canceled by its owner") -> None:
        job = self.job(job_id)
        if not job.state.is_final:
            self.by_id[job_id] = dataclasses.replace(job, state=JobState.CANCELLED, finished_s=9.0, reason=reason)

    def change_job(self, job_id: str, **values: float) -> None:
        job = self.job(job_id)
        if job.state.is_final:
            raise ConflictError("it is over")
        self.by_id[job_id] = dataclasses.replace(job, spec=job.spec.changed(**values))  # type: ignore[arg-type]

    def jobs(self) -> list[Job]:
        return list(self.by_id.values())

    def job(self, job_id: str) -> Job:
        assert is_id(job_id), f"something that is not an id got through: {job_id!r}"
        self.asked.append(job_id)
        if job_id not in self.by_id:
            raise UnknownJobError(f"there is no job {job_id!r}")
        return self.by_id[job_id]

    def explain(self, job_id: str) -> list[Sentence]:
        return [Sentence(self.job(job_id).submitted_s, "submitted"), Sentence(5.0, "has 2 of 4 devices")]

    def history(self, job_id: str) -> HistoryRow:
        return {"id": self.job(job_id).id, "points": [], "marks": [], "speeds": [], "phases": None}

    def queue(self) -> dict[str, QueuePlace]:
        return self.places

    def decisions(self, last: int = 100) -> list[Decision]:
        return self.made_decisions[-last:]

    def outlook(self, submission: Submission) -> OutlookRow:
        return {"workers": submission.min_workers, "reason": "the cluster is empty", "reason_code": "AsRequested"}

    def nodes(self) -> list[NodeView]:
        here = NodeView(0, "here", NodeStatus.UP, {0: tuple(self.by_id)[:1], 1: ()})
        return [here, NodeView(1, "there", NodeStatus.LOST, {2: ()})]

    def now_s(self) -> float:
        return 1000.0

    def timeline(self, since_s: float, until_s: float) -> list[AttemptBar]:
        return [bar for bar in self.bars if bar.start_s <= until_s]

    def whatif(self, question: Question) -> WhatifRow:
        for job_id in question.jobs:
            self.job(job_id)
        plan: PlanRow = {"policy": "balanced", "devices": 2, "mean_jct_s": None, "makespan_s": None, "jobs": []}
        return {"plan": plan, "whatif": plan, "assumptions": []}

    def drain(self, name: str, *, resume: bool = False) -> None:
        """Nothing to do."""

    def logs(
        self, job_id: str, attempt: int | None = None, rank: int | None = None, stream: LogStream = "out"
    ) -> FakeLog:
        chosen = self.job(job_id).attempt if attempt is None else attempt
        if (job_id, chosen, stream) not in self.output and not self.endless:
            raise UnknownJobError(f"job {job_id} has no attempt {chosen}")
        return FakeLog(self.output.get((job_id, chosen, stream), b""), chosen, rank or 0, lambda: self.endless)

    def purge(self, older_than_s: float, *, dry_run: bool = False) -> PurgeRow:
        return {"jobs": [], "freed_bytes": 0, "problems": []}

    def warnings(self) -> list[str]:
        return []

    def shutdown(self, stop_jobs: bool = False) -> None:
        self.went_down.append(stop_jobs)

    def metrics(self) -> bytes:
        return b"weft_jobs 1\n"


@contextlib.contextmanager
def served(controller: FakeController, root: Path) -> Iterator[Home]:
    """The fake behind the real api, on a unix socket, as the controller of the home at ``root``."""
    with served_on_both(controller, root, ConnectionPatience()) as (home, _):
        yield home


@contextlib.contextmanager
def served_on_both(
    controller: FakeController,
    root: Path,
    patience: ConnectionPatience,
    *,
    body_s: float = BODY_S,
    num_files: int = 1024,
    is_for_browsers: bool = False,
) -> Iterator[tuple[Home, int]]:
    """The same on a port, too, which is the second thing given.

    Requests there name the host without the port; ``is_for_browsers``: with it, as browsers do.
    """
    home = Home(root)
    home.prepare()
    home.token_file.write_text(TOKEN)
    home.token_file.chmod(0o600)
    with Reserve() as reserve, listen_unix(home.api_socket, reserve) as unix, listen_local(0, reserve) as local:
        port: int = local.getsockname()[1]
        home.write_record(Record(1, 0.0, str(home.api_socket), port, "0"))
        app = make_app(controller, TOKEN, port=port if is_for_browsers else None, body_s=body_s)
        config = server_config(app, patience=patience, num_files=num_files, timeout_graceful_shutdown=1)
        server = uvicorn.Server(config)
        thread = threading.Thread(target=asyncio.run, args=(server.serve(sockets=[unix, local]),))
        thread.start()
        try:
            yield home, port
        finally:
            server.should_exit = True
            thread.join()
            home.api_socket.unlink(missing_ok=True)
