"""The result of a replay: completion times and allocations over time; and how it is collected."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from weft.control.state import Job, State
from weft.core.chrome_trace import Span
from weft.core.cluster import Cluster
from weft.sim.job_run import JobRun


@dataclass(frozen=True, slots=True)
class JobResult:
    """How one job fared."""

    name: str
    submitted_s: float
    started_s: float
    finished_s: float
    num_restarts: int
    """Starts after the first."""
    device_s: float
    """Devices held x time; a shared device counts half."""

    @property
    def completion_s(self) -> float:
        """From submission to end."""
        return self.finished_s - self.submitted_s


@dataclass(frozen=True, slots=True)
class AllocationSpan:
    """A job on the same devices from ``start_s`` to ``end_s``."""

    job: str
    start_s: float
    end_s: float
    devices: tuple[int, ...]
    partner: str | None = None


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a job had its workers, from ``time_s`` on."""

    time_s: float
    job: str
    workers: int
    sentence: str


@dataclass(frozen=True)
class SimulationResult:
    """One workload under one policy."""

    workload: str
    policy: str
    num_devices: int
    jobs: tuple[JobResult, ...]
    """In order of submission."""
    spans: tuple[AllocationSpan, ...]
    explanations: tuple[Explanation, ...]
    busy_device_s: float
    """Devices in use x time; a device shared by two jobs counts once."""
    decision_s: tuple[float, ...]
    """Real time each decision took (policy and placement)."""
    wall_s: float
    """Real time the whole replay took."""

    @cached_property
    def completion_times_s(self) -> tuple[float, ...]:
        return tuple(job.completion_s for job in self.jobs)

    @property
    def mean_jct_s(self) -> float:
        return sum(self.completion_times_s) / len(self.jobs)

    def percentile_jct_s(self, percent: float) -> float:
        """The completion time that ``percent`` of the jobs do not exceed (linear between two jobs)."""
        return percentile(sorted(self.completion_times_s), percent)

    @property
    def makespan_s(self) -> float:
        """From the first submission to the last end."""
        return max(job.finished_s for job in self.jobs) - min(job.submitted_s for job in self.jobs)

    @property
    def utilization(self) -> float:
        """Share of the cluster's device time over the makespan that was allocated."""
        return self.busy_device_s / (self.num_devices * self.makespan_s)

    @property
    def restarts_per_job(self) -> float:
        return sum(job.num_restarts for job in self.jobs) / len(self.jobs)

    @property
    def decision_ms(self) -> float:
        """Mean real time of one decision."""
        return 1e3 * sum(self.decision_s) / len(self.decision_s) if self.decision_s else 0.0

    @property
    def jobs_per_s(self) -> float:
        """Jobs replayed per second of real time."""
        return len(self.jobs) / self.wall_s


def percentile(ordered: Sequence[float], percent: float) -> float:
    """Of sorted values the one that ``percent`` of them do not exceed (linear between two)."""
    position = (len(ordered) - 1) * percent / 100
    below = int(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)


class Recorder:
    """Write-only until :meth:`result`."""

    def __init__(self, *, enabled: bool) -> None:
        self.enabled = enabled
        self._spans: list[AllocationSpan] = []
        self._began: dict[str, float] = {}
        self._explanations: list[Explanation] = []
        self._decisions: list[float] = []
        self._busy_device_s = 0.0
        self._num_busy = 0
        self._busy_since_s = 0.0

    def reassigned(self, now_s: float, changes: Iterable[tuple[Job, Job]]) -> None:
        """Jobs before and after a decision that changed their devices or partner."""
        if not self.enabled:
            return
        for before, after in changes:
            if before.devices:
                self._span_ended(before, now_s)
            if after.devices:
                self._began[after.id] = now_s

    def left(self, now_s: float, job: Job) -> None:
        """The job, given as it was before, has lost its devices."""
        if self.enabled:
            self._span_ended(job, now_s)

    def left_alone(self, now_s: float, job: Job) -> None:
        """The partner of the job, given as it was before, has left."""
        if self.enabled:
            self._span_ended(job, now_s)
            self._began[job.id] = now_s

    def busy(self, now_s: float, num_busy: int) -> None:
        """From now on ``num_busy`` devices are in use."""
        self._busy_device_s += self._num_busy * (now_s - self._busy_since_s)
        self._num_busy, self._busy_since_s = num_busy, now_s

    def decision(self, took_s: float) -> None:
        self._decisions.append(took_s)

    def explain(self, now_s: float, job: str, workers: int, sentence: str) -> None:
        self._explanations.append(Explanation(now_s, job, workers, sentence))

    def result(
        self, workload: str, policy: str, cluster: Cluster, state: State, runs: Mapping[str, JobRun], wall_s: float
    ) -> SimulationResult:
        jobs = tuple(_job_result(job, runs[job.id]) for job in sorted(state.jobs.finished, key=lambda job: job.number))
        return SimulationResult(
            workload,
            policy,
            cluster.num_devices,
            jobs,
            tuple(self._spans),
            tuple(self._explanations),
            self._busy_device_s,
            tuple(self._decisions),
            wall_s,
        )

    def _span_ended(self, job: Job, now_s: float) -> None:
        start_s = self._began.pop(job.id)
        if now_s > start_s:
            self._spans.append(AllocationSpan(job.id, start_s, now_s, job.devices, job.partner))


def _job_result(job: Job, run: JobRun) -> JobResult:
    started_s, finished_s = job.started_s, job.finished_s
    if started_s is None or finished_s is None:
        raise RuntimeError(f"job {job.id} ended as {job.state.value} without having run: expected every job to run")
    return JobResult(job.id, job.spec.submitted_s, started_s, finished_s, job.num_restarts, run.billed_device_s)


def timeline(result: SimulationResult, cluster: Cluster) -> Iterator[Span]:
    """A replay for Perfetto: one row per GPU, or two if jobs take turns; bars in order of device, then time."""
    bars = [(device, span.start_s, span) for span in result.spans for device in span.devices]
    for device, _, span in sorted(bars, key=lambda bar: (bar[0], bar[1], bar[2].job)):
        # Of two jobs on one device, the name decides which is on the second row: the same order every time.
        second = span.partner is not None and span.job > span.partner
        node = cluster.node_of(device)
        args = {"job": span.job, "workers": len(span.devices)}
        if span.partner:
            args["partner"] = span.partner
        yield Span(
            f"{result.policy}: node {node}",
            f"gpu {device}{' (shared)' if second else ''}",
            span.job,
            span.start_s,
            span.end_s - span.start_s,
            args,
        )
