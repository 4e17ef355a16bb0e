"""The loss of a job: the mean over its workers, each of which reports the loss on its own part of the batch."""

from __future__ import annotations

from dataclasses import replace

from weft.core.step_report import StepReport

_MAX_WORKERS = 100_000


class MeanLosses:
    """The newest loss of every worker of each job's current attempt."""

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
