"""Step reports on their way into the journal: all jobs together, every few seconds."""

from __future__ import annotations

import math

from weft.control.state import State
from weft.core.events import ProgressReported
from weft.daemon.report_channel import WorkerReport

_EVERY_S = 2.0


class ProgressBatch:
    """The newest report of each job that is not written down yet."""

    def __init__(self) -> None:
        self._reports: dict[str, WorkerReport] = {}
        self._written_s = -math.inf

    def add(self, report: WorkerReport) -> None:
        self._reports[report.job_id] = report

    @property
    def due_s(self) -> float:
        """When to write down what is here."""
        return self._written_s + _EVERY_S if self._reports else math.inf

    def take(self, now_s: float) -> list[ProgressReported]:
        """Everything; the next batch begins."""
        self._written_s = now_s
        taken = [_event(report, now_s) for report in self._reports.values()]
        self._reports.clear()
        return taken

    def take_of(self, job_id: str, now_s: float) -> list[ProgressReported]:
        """What one job has reported: it ends, and its last step should be known."""
        report = self._reports.pop(job_id, None)
        return [_event(report, now_s)] if report else []


def is_stopping(state: State, job_id: str, attempt: int) -> bool | None:
    """Whether the attempt was asked to stop; ``None`` when it is not the present attempt of a job."""
    job = state.jobs.active.get(job_id)
    if job is None or job.attempt != attempt or not job.devices:
        return None
    return job.is_cancelled or job.devices != job.wanted


def _event(report: WorkerReport, now_s: float) -> ProgressReported:
    return ProgressReported(
        now_s,
        report.job_id,
        report.attempt,
        report.step,
        report.total_steps,
        report.step_s,
        report.exposed_s,
        report.loss,
    )
