"""What readers produce and the loop replays: jobs with their true behaviour."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from weft.core.cluster import Shape
from weft.core.job import JobSpec
from weft.core.speed import StepTime
from weft.errors import UsageError


class Profile(Protocol):
    """How an application really behaves at one global batch size.  Shared by all jobs of that kind, so that
    what is derived from it is derived once: profiles are compared by identity."""

    @property
    def sizes(self) -> tuple[int, ...]:
        """Worker counts it can run at, smallest first."""

    def step_time(self, shape: Shape) -> StepTime:
        """One step with this many workers per node (in ring order; nodes without workers left out)."""


@dataclass(frozen=True, eq=False)
class TableProfile:
    """A profile that only knows the number of workers, not where they sit.

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
class TrueJob:
    """A job as submitted, and what it takes to finish it."""

    spec: JobSpec
    profile: Profile
    total_steps: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.total_steps) and self.total_steps > 0):
            raise UsageError(f"job {self.spec.name} has {self.total_steps} steps to make: expected a positive number")


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
        names = {job.spec.name for job in self.jobs}
        if len(names) < len(self.jobs):
            raise UsageError(f"workload {self.name} uses a job name twice: names must be unique")
