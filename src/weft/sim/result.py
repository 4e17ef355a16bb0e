"""What a replay gives back: completion times, who had what when, and the log of events."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True, slots=True)
class JobResult:
    """The fate of one job."""

    name: str
    submitted_s: float
    started_s: float
    finished_s: float
    num_restarts: int
    """Times it was stopped and started on other devices (the first start not counted)."""
    device_s: float
    """Devices held x time, a shared device counted half."""

    @property
    def completion_s(self) -> float:
        """Submission to end."""
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
class SimEvent:
    """One line of the event log."""

    time_s: float
    kind: str
    """submitted, started, resized, moved, shares, paused, finished, node_failed or node_repaired."""
    subject: str
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.time_s:.3f} {self.kind} {self.subject} {self.detail}".rstrip()


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a job had the workers it had, from ``time_s`` on."""

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
    events: tuple[SimEvent, ...]
    explanations: tuple[Explanation, ...]
    busy_device_s: float
    """Devices in use x time, a device shared by two jobs counted once."""
    decision_s: tuple[float, ...]
    """Real time each decision took (policy and placement); not part of the event log."""
    wall_s: float
    """Real time the whole replay took."""

    @cached_property
    def completion_times_s(self) -> tuple[float, ...]:
        return tuple(job.completion_s for job in self.jobs)

    @property
    def mean_jct_s(self) -> float:
        return sum(self.completion_times_s) / len(self.jobs)

    def percentile_jct_s(self, percent: float) -> float:
        """The completion time that ``percent`` of the jobs stay within (linear between two jobs)."""
        return _percentile(sorted(self.completion_times_s), percent)

    @property
    def makespan_s(self) -> float:
        """First submission to last end."""
        return max(job.finished_s for job in self.jobs) - min(job.submitted_s for job in self.jobs)

    @property
    def utilization(self) -> float:
        """Share of the cluster's device time, over the makespan, in which a device was allocated."""
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

    def event_log(self) -> str:
        """The log as text, one event a line; byte-identical for the same inputs and seed."""
        return "".join(f"{event}\n" for event in self.events)


def _percentile(ordered: Sequence[float], percent: float) -> float:
    position = (len(ordered) - 1) * percent / 100
    below = int(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)
