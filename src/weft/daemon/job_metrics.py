"""Prometheus series of individual jobs: only those with workers, and only a bounded number of them, since every label
value is a time series that Prometheus keeps for weeks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from weft.control.state import Job

MAX_JOB_SERIES = 200
_MAX_NAME = 100
_LABELS = ("job", "name", "user")

_SERIES: Sequence[tuple[str, str, Callable[[Job], float | None]]] = (
    ("weft_job_workers", "Workers of the job", lambda job: len(job.devices)),
    ("weft_job_step", "Last step reported", lambda job: job.progress.step),
    ("weft_job_steps", "Total number of steps, if known", lambda job: job.progress.total_steps),
    ("weft_job_step_seconds", "Time of a step", lambda job: job.progress.step_s or None),
    ("weft_job_exposed_seconds", "Exposed communication in a step", lambda job: job.progress.exposed_s),
    ("weft_job_loss", "Last loss reported", lambda job: job.progress.loss),
    ("weft_job_restarts", "Starts after the first", lambda job: job.num_restarts),
)


class _RunningJobs(Collector):
    def __init__(self, jobs: Sequence[Job], num_left_out: int) -> None:
        self._jobs, self._num_left_out = jobs, num_left_out

    def collect(self) -> Iterator[Metric]:
        for name, text, value_of in _SERIES:
            family = GaugeMetricFamily(name, text, labels=_LABELS)
            for job in self._jobs:
                value = value_of(job)
                if value is not None and math.isfinite(value):
                    family.add_metric([job.id, job.name[:_MAX_NAME] or job.id, job.spec.user], value)
            yield family
        yield GaugeMetricFamily(
            "weft_jobs_without_series", "Running jobs beyond the number that gets series", self._num_left_out
        )


def job_series(jobs: Iterable[Job]) -> bytes:
    """The text that Prometheus scrapes, for jobs that have workers: the oldest :data:`MAX_JOB_SERIES` of them."""
    running = [job for job in jobs if job.devices]
    registry = CollectorRegistry()
    registry.register(_RunningJobs(running[:MAX_JOB_SERIES], max(len(running) - MAX_JOB_SERIES, 0)))
    return generate_latest(registry)
