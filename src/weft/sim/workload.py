"""What readers produce and the simulator replays: jobs with their true behavior."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Protocol

from weft.core.cluster import Shape
from weft.core.job import JobSpec
from weft.core.speed import StepTime
from weft.errors import UsageError


class Profile(Protocol):
    """The true behavior of an application at one global batch size.  Shared by all jobs of that kind and compared by
    identity, so that whatever is derived from it is derived once."""

    @property
    def sizes(self) -> tuple[int, ...]:
        """Numbers of workers it can run with, smallest first."""

    def step_time(self, shape: Shape) -> StepTime:
        """One step with this many workers per node (in ring order, without nodes that have none)."""


@dataclass(frozen=True, eq=False)
class TableProfile:
    """A profile that depends only on the number of workers, not on where they are.

    >>> TableProfile({1: StepTime(1.0), 2: StepTime(0.6, 0.1)}).step_time((1, 1)).step_s
    0.6
    """

    times: Mapping[int, StepTime]

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(sorted(self.times))

    def step_time(self, shape: Shape) -> StepTime:
        return self.times[sum(shape)]


@dataclass(frozen=True, slots=True)
class JobStage:
    """A part of a job's training with a behavior of its own."""

    left_steps: float
    """What is left of the job when it ends; 0 for the last one."""
    profile: Profile


@dataclass(frozen=True, slots=True)
class TrueJob:
    """A job as submitted, and its true behavior."""

    spec: JobSpec
    profile: Profile
    total_steps: float
    stages: tuple[JobStage, ...] = ()
    """If its behavior changes while it trains; then ``profile`` is at least as fast as every stage."""
    start_s: float | None = None
    """What a start costs it; None: what it costs every job, ``SimulationOptions.restart_s``."""
    restart_s: float | None = None
    """What a start costs it after it was stopped, the stop included; None: as much as the first."""

    def start_cost_s(self, usual_s: float, *, is_restart: bool = False) -> float:
        if is_restart and self.restart_s is not None:
            return self.restart_s
        return usual_s if self.start_s is None else self.start_s

    def __post_init__(self) -> None:
        if not (math.isfinite(self.total_steps) and self.total_steps > 0):
            raise UsageError(f"job {self.spec.id} has {self.total_steps} steps: expected a positive number")
        for cost_s in (self.start_s, self.restart_s):
            if cost_s is not None and not 0 <= cost_s < math.inf:
                raise UsageError(f"a start of job {self.spec.id} costs {cost_s} s: expected a finite number >= 0")


@dataclass(frozen=True)
class Workload:
    """Jobs to replay, in order of submission."""

    name: str
    jobs: tuple[TrueJob, ...]
    quotas: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.jobs:
            raise UsageError(f"workload {self.name} has no jobs: expected at least one")
        if any(a.spec.submitted_s > b.spec.submitted_s for a, b in zip(self.jobs, self.jobs[1:], strict=False)):
            raise UsageError(f"workload {self.name} is not sorted by submission time: sort its jobs")
        names = {job.spec.id for job in self.jobs}
        if len(names) < len(self.jobs):
            raise UsageError(f"workload {self.name} uses a job name twice: names must be unique")


# How a job scales if we only know how long it ran at one size.  The step of a ring all-reduce job on w workers,
# relative to the step on one:
#     T(w) / T(1) = 1 / w  +  0.05 * (w - 1) / w  +  0.0005 * (w - 1)
# perfectly divided compute, and a ring's bandwidth and latency terms: a speedup of 5.8 on 8 workers and 10 on 32.  The
# constants are our assumption, not a measurement: give step times if you have them.
BANDWIDTH_SHARE = 0.05
LATENCY_SHARE = 0.0005


def relative_step(num_workers: int) -> StepTime:
    """The step time on ``num_workers`` relative to that on one worker."""
    exposed = BANDWIDTH_SHARE * (num_workers - 1) / num_workers + LATENCY_SHARE * (num_workers - 1)
    return StepTime(1.0 / num_workers + exposed, exposed)


@cache
def assumed_profile(known_workers: int, sizes: tuple[int, ...]) -> TableProfile:
    """A profile whose steps at ``known_workers`` take one second, so that a duration is a number of steps.

    Cached, because profiles are compared by identity and a log has thousands of jobs of one kind.
    """
    unit = relative_step(known_workers).step_s
    times = {}
    for size in sizes:
        step = relative_step(size)
        times[size] = StepTime(step.step_s / unit, step.exposed_s / unit)
    return TableProfile(times)


def doubling_sizes(smallest: int, largest: int, *also: int) -> tuple[int, ...]:
    """Powers of two from ``smallest`` to ``largest``, and ``also``.

    >>> doubling_sizes(1, 24, 12)
    (1, 2, 4, 8, 12, 16)
    """
    powers = {1 << exponent for exponent in range(largest.bit_length())}
    return tuple(sorted({size for size in powers | set(also) if smallest <= size <= largest}))
