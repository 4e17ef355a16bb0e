"""Global batch sizes of jobs submitted with a range of them: what is known, and which one the next attempt gets.

Whenever a job starts, it gets the batch size that makes the most progress per second with its number of workers,
according to the measured gradient noise and step times (``perf/batch_size.py``).  A job is never restarted only to
change its batch size.

[Note: steps of different batches]  Policies compare a job's sizes by step time.  A job trains on a certain number of
samples, and a step at twice the batch size processes twice as many, so all its step times and remaining steps are
converted to steps at the script's own batch size.  A size measured with a larger batch then appears as fast as it is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from weft.control.state import Job
from weft.core import worker_environment as names
from weft.core.step_report import BatchReport, StepReport
from weft.core.submission import batch_range
from weft.perf.batch_size import best_batch, fitted_cost

_MAX_STEP_TIMES = 15
_MAX_KINDS = 64
"""Maximum number of combinations of workers and batch size remembered per job; the newest are kept."""


@dataclass(slots=True)
class _JobBatches:
    newest: BatchReport
    noise_scale: float | None = None
    """From the last report that had one: a job with one worker measures none."""
    steps: dict[tuple[int, int], deque[tuple[float, float]]] = field(default_factory=dict)
    """By workers and batch size: step times, and how much of each was waiting for the network."""


class BatchChoices:
    """What is known about the batch sizes of all active jobs that have a range of them."""

    def __init__(self) -> None:
        self._jobs: dict[str, _JobBatches] = {}

    def reported(self, report: StepReport, *, counts: bool) -> StepReport:
        """Record a report of a job's first worker; ``counts``: its steps are those of a job alone that has warmed up.

        Returns it with its times per step at the script's batch size; see [Note: steps of different batches].
        """
        batch, progress = report.batch, report.progress
        if batch is None:
            return report
        known = self._jobs.setdefault(report.job_id, _JobBatches(batch))
        known.newest = batch
        if batch.noise_scale is not None:
            known.noise_scale = batch.noise_scale
        if counts and progress.step_s > 0.0:
            key = report.world_size, batch.size
            if key not in known.steps and len(known.steps) >= _MAX_KINDS:
                del known.steps[next(iter(known.steps))]
            kept = known.steps.setdefault(key, deque(maxlen=_MAX_STEP_TIMES))
            kept.append((progress.step_s, progress.exposed_s))
        worth = self.script_steps(report.job_id)
        converted = replace(progress, step_s=progress.step_s / worth, exposed_s=progress.exposed_s / worth)
        return replace(report, progress=converted)

    def script_steps(self, job_id: str) -> float:
        """How many steps at the script's batch size one step is worth, in the last attempt that reported."""
        known = self._jobs.get(job_id)
        return known.newest.size / known.newest.script_size if known else 1.0

    def chosen(self, job: Job, num_workers: int) -> int | None:
        """The batch size for an attempt with this many workers; None until enough is known to choose one."""
        known = self._jobs.get(job.id)
        if job.launch is None or not job.launch.batch or known is None:
            return None
        low, high = batch_range(job.launch.batch)
        if known.noise_scale is None:
            return None
        cost = fitted_cost(
            (batch / workers, step_s, exposed_s)
            for (workers, batch), kept in known.steps.items()
            if workers == self._nearest_size(known, num_workers)
            for step_s, exposed_s in kept
        )
        return None if cost is None else best_batch(low, high, num_workers, known.noise_scale, cost)

    def environment(self, job: Job, num_workers: int) -> dict[str, str]:
        """Environment variables of an attempt with this many workers."""
        if job.launch is None or not job.launch.batch:
            return {}
        batch = self.chosen(job, num_workers)
        return {names.BATCH_RANGE: job.launch.batch} | ({} if batch is None else {names.BATCH_SIZE: str(batch)})

    @staticmethod
    def _nearest_size(known: _JobBatches, num_workers: int) -> int:
        """The measured size whose fixed cost is the best guess: the same, or the next larger, or the largest."""
        sizes = sorted({workers for workers, _ in known.steps})
        return next((size for size in sizes if size >= num_workers), sizes[-1] if sizes else 0)

    def forget(self, job_id: str) -> None:
        """The job is over."""
        self._jobs.pop(job_id, None)

    def document(self) -> dict[str, Any]:
        """Plain data for a JSON file."""
        return {
            job_id: {
                "size": known.newest.size,
                "script_size": known.newest.script_size,
                "noise_scale": known.noise_scale,
                "steps": [[*key, [list(one) for one in kept]] for key, kept in known.steps.items()],
            }
            for job_id, known in self._jobs.items()
        }

    def restore(self, document: Mapping[str, Any], job_ids: Iterable[str]) -> None:
        """Restore what was kept about these jobs; raises ``ValueError`` and the like on an invalid document."""
        for job_id in job_ids:
            kept = document.get(job_id)
            if kept is None:
                continue
            noise_scale = None if kept["noise_scale"] is None else float(kept["noise_scale"])
            known = _JobBatches(BatchReport(int(kept["size"]), int(kept["script_size"])), noise_scale)
            for workers, batch, steps in kept["steps"]:
                found = ((float(step_s), float(exposed_s)) for step_s, exposed_s in steps)
                known.steps[int(workers), int(batch)] = deque(found, maxlen=_MAX_STEP_TIMES)
            self._jobs[job_id] = known
