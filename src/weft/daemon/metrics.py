"""Metrics for Prometheus: of the controller, and of individual jobs.

Only jobs with workers have series, and only a bounded number of them: every label value is a time series that
Prometheus keeps for weeks.
"""

from __future__ import annotations

import math
from collections import Counter as Tally
from collections.abc import Callable, Iterable, Iterator, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from weft.control.state import Job, JobState, State
from weft.core.step_report import Progress
from weft.daemon.disk import Space

_COMMIT_BUCKETS_S = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 2.0)
_DECISION_BUCKETS_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 2.0)


class Metrics:
    """One registry per controller, so that several can live in one process (tests do that)."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        self.events = Counter("weft_events_total", "Events written to the journal", ["kind"], registry=registry)
        self.commit_s = Histogram(
            "weft_commit_seconds", "Time to make events durable", buckets=_COMMIT_BUCKETS_S, registry=registry
        )
        self.decision_s = Histogram(
            "weft_decision_seconds", "Time to decide and place", buckets=_DECISION_BUCKETS_S, registry=registry
        )
        self.decision_errors = Counter("weft_decision_errors_total", "Decisions that failed", registry=registry)
        self.store_errors = Counter("weft_store_errors_total", "Commits that failed", registry=registry)
        self.engine_errors = Counter("weft_engine_errors_total", "Engine calls that failed", registry=registry)
        self.faults = Counter(
            "weft_faults_total", "Internal errors that were contained, by location", ["where"], registry=registry
        )
        self._troubled = Gauge("weft_attempts_troubled", "Attempts that are held up", registry=registry)
        self.reports = Counter("weft_reports_total", "Step reports received", registry=registry)
        self._free = Gauge("weft_disk_free_bytes", "Free space on the disk of the home", registry=registry)
        self._low = Gauge("weft_disk_low", "1 if that disk is nearly full", registry=registry)
        self._dropped = Gauge("weft_reports_dropped", "Datagrams that were late or not a report", registry=registry)
        self._jobs = Gauge("weft_jobs", "Jobs by state", ["state"], registry=registry)
        self._devices = Gauge("weft_devices", "Usable devices", registry=registry)
        self._busy = Gauge("weft_devices_busy", "Devices held by jobs", registry=registry)
        self._aside = Gauge("weft_jobs_set_aside", "Jobs the policy fails on", registry=registry)
        self._restarts = Gauge("weft_restarts", "Restarts of all jobs", registry=registry)

    def text(self, state: State, num_dropped: int, num_aside: int, num_troubled: int, space: Space | None) -> bytes:
        """The text that Prometheus scrapes."""
        jobs = state.jobs.values()
        states = Tally(job.state for job in jobs)
        for one in JobState:
            self._jobs.labels(one.value).set(states[one])
        self._devices.set(state.cluster.num_devices)
        self._busy.set(len({device for job in jobs for device in job.devices}))
        self._restarts.set(sum(job.num_restarts for job in jobs))
        self._dropped.set(num_dropped)
        self._aside.set(num_aside)
        self._troubled.set(num_troubled)
        if space is not None:
            self._free.set(space.free_bytes)
            self._low.set(int(space.is_low))
        return generate_latest(self._registry)


MAX_JOB_SERIES = 200
_MAX_NAME = 100
_LABELS = ("job", "name", "user")


def _exposed_s(progress: Progress) -> float | None:
    """``None`` for a script that does not report its steps."""
    return progress.exposed_s if progress.step_s else None


_SERIES: Sequence[tuple[str, str, Callable[[Job], float | None]]] = (
    ("weft_job_workers", "Workers of the job", lambda job: len(job.devices)),
    ("weft_job_step", "Last step reported", lambda job: job.progress.step or None),
    ("weft_job_steps", "Total number of steps, if known", lambda job: job.progress.total_steps),
    ("weft_job_step_seconds", "Time of a step", lambda job: job.progress.step_s or None),
    ("weft_job_exposed_seconds", "Exposed communication in a step", lambda job: _exposed_s(job.progress)),
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
