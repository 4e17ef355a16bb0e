"""The last report of each job's first worker: where the controller finds a job's latest step."""

from __future__ import annotations

import math

from weft.control.state import Job
from weft.core.events import ProgressReported
from weft.core.step_report import Progress, StepReport

_WRITE_EVERY_S = 2.0


class NewestReports:
    """The new ones are written to the journal together, every few seconds."""

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
