"""The last reports of each job: where the controller finds its latest step, and its loss."""

from __future__ import annotations

import math
from dataclasses import replace

from weft.control.state import Job
from weft.core.events import ProgressReported
from weft.core.step_report import Progress, StepReport

_WRITE_EVERY_S = 2.0
_MAX_WORKERS = 100_000


class NewestReports:
    """Those of each job's first worker; the new ones are written to the journal together, every few seconds."""

    def __init__(self) -> None:
        self._by_job: dict[str, StepReport] = {}
        self._unwritten: dict[str, None] = {}
        """Ids of jobs, in the order in which they reported."""
        self._written_s = -math.inf

    def add(self, report: StepReport) -> None:
        self._by_job[report.job_id] = report
        self._unwritten[report.job_id] = None

    def progress(self, job: Job) -> Progress:
        """How far along the job is: from the last report of its current attempt, or else from the journal."""
        report = self._by_job.get(job.id)
        if report is None or report.attempt != job.attempt or not job.devices:
            return job.progress
        return report.progress.after(job.progress)

    def forget(self, job_id: str) -> None:
        """The job is over."""
        self._by_job.pop(job_id, None)
        self._unwritten.pop(job_id, None)

    @property
    def due_s(self) -> float:
        """When to write the new ones."""
        return self._written_s + _WRITE_EVERY_S if self._unwritten else math.inf

    def take(self, now_s: float) -> list[ProgressReported]:
        """The new ones, to be written now."""
        self._written_s = now_s
        return [event for job_id in list(self._unwritten) for event in self.take_of(job_id, now_s)]

    def take_of(self, job_id: str, now_s: float) -> list[ProgressReported]:
        """The new one of this job: its attempt is ending, and its last step must not get lost."""
        if job_id not in self._unwritten:
            return []
        del self._unwritten[job_id]
        report = self._by_job[job_id]
        return [ProgressReported(now_s, job_id, report.attempt, report.progress)]


class MeanLosses:
    """The newest loss of every worker of each job's current attempt: each has only its own part of the batch."""

    def __init__(self) -> None:
        self._attempts: dict[str, tuple[int, dict[int, float]]] = {}

    def averaged(self, report: StepReport) -> StepReport:
        """The report with the mean of the newest losses of all workers that have reported one."""
        loss = report.progress.loss
        if loss is None:
            return report
        attempt, losses = self._attempts.get(report.job_id, (0, {}))
        if attempt != report.attempt:
            losses = {}
            self._attempts[report.job_id] = (report.attempt, losses)
        if report.rank < min(report.world_size, _MAX_WORKERS):
            losses[report.rank] = loss
        mean = sum(losses.values()) / len(losses) if losses else loss
        return replace(report, progress=replace(report.progress, loss=mean))

    def forget(self, job_id: str) -> None:
        """The job's attempt is over."""
        self._attempts.pop(job_id, None)
