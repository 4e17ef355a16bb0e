"""Synthetic queues: jobs arrive at random (Poisson) at one of three levels of contention.

``synthetic:extreme``, ``synthetic:moderate`` and ``synthetic:none`` mean an offered load of 2, 0.8 and 0.15: device
time at the requested sizes per device time of a cluster of 64.  The jobs are our own kinds of training, from minutes to
many hours, or the applications in a profiles folder.  The same seed gives the same queue.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from weft.core.cluster import Cluster
from weft.core.job import JobSpec
from weft.core.nearest_name import unknown_name
from weft.core.speed import StepTime
from weft.errors import UsageError
from weft.sim.readers.application_profiles import ApplicationFolder
from weft.sim.workload import Profile, TableProfile, TrueJob, Workload, doubling_sizes

MAX_JOBS = 1_000_000
PREFIX = "synthetic:"
OFFERED_LOAD = {"extreme": 2.0, "moderate": 0.8, "none": 0.15}
REFERENCE_DEVICES = 64
DEFAULT_JOBS = 160
# Long jobs are rare: beyond one device hour, a kind's share falls with its device time to this power.
RARITY = 0.7
# Jobs of one kind differ in length (log-normal), since people stop early or train longer.
LENGTH_SPREAD = 0.5


@dataclass(frozen=True, slots=True)
class JobKind:
    """One kind of job in the mix."""

    name: str
    profile: Profile
    total_steps: float
    requested_sizes: tuple[int, ...]

    def device_s(self, num_workers: int) -> float:
        """Device time of a whole job at one size, with its workers packed on nodes of four."""
        shape = Cluster.uniform(num_workers, 4).packed_shape(num_workers)
        return num_workers * self.profile.step_time(shape).step_s * self.total_steps


@dataclass(frozen=True, slots=True)
class _Model:
    """A synthetic training run: one worker's compute, the ring's bandwidth and latency terms, its length."""

    name: str
    compute_s: float
    bandwidth_s: float
    latency_s: float
    total_steps: float
    max_workers: int
    requested_sizes: tuple[int, ...]


MODELS = (
    _Model("recommender", 0.05, 0.030, 0.002, 4_000, 4, (1,)),
    _Model("small-vision", 0.60, 0.020, 0.001, 6_000, 32, (4, 8)),
    _Model("speech", 1.20, 0.080, 0.002, 18_000, 32, (4, 8, 12)),
    _Model("language", 2.40, 0.350, 0.003, 6_000, 32, (8, 16)),
    _Model("detection", 1.00, 0.200, 0.002, 60_000, 16, (4, 8)),
    _Model("large-vision", 6.00, 0.120, 0.002, 40_000, 64, (16, 32)),
)


def synthetic_workload(
    source: str, *, seed: int = 0, applications: ApplicationFolder | None = None, num_devices: int
) -> Workload:
    """The queue for ``synthetic:LEVEL`` or ``synthetic:LEVEL:JOBS``.

    >>> workload = synthetic_workload("synthetic:moderate:3", num_devices=64)
    >>> len(workload.jobs), workload.jobs[0].spec.submitted_s > 0
    (3, True)
    """
    level, num_jobs = _parse(source)
    kinds = own_kinds() if applications is None else measured_kinds(applications)
    shares = [max(_typical_device_s(kind), 3600.0) ** -RARITY for kind in kinds]
    mean_device_s = sum(s * _typical_device_s(k) for s, k in zip(shares, kinds, strict=True)) / sum(shares)
    mean_gap_s = mean_device_s / (OFFERED_LOAD[level] * REFERENCE_DEVICES)
    draw = random.Random(f"{level} {seed}")
    jobs = []
    now_s = 0.0
    for number in range(num_jobs):
        now_s += draw.expovariate(1.0 / mean_gap_s)
        kind = draw.choices(kinds, shares)[0]
        # Divided by its mean, so that the spread does not change the offered load.
        length = draw.lognormvariate(-(LENGTH_SPREAD**2) / 2, LENGTH_SPREAD)
        requested = min(draw.choice(kind.requested_sizes), _largest(kind.profile.sizes, num_devices))
        sizes = kind.profile.sizes
        spec = JobSpec(
            f"{kind.name}-{number}",
            round(now_s, 3),
            min_workers=sizes[0],
            max_workers=sizes[-1],
            requested_workers=requested,
            sizes=() if len(sizes) == sizes[-1] else sizes,
        )
        jobs.append(TrueJob(spec, kind.profile, kind.total_steps * length))
    return Workload(f"synthetic-{level}", tuple(jobs))


def _parse(source: str) -> tuple[str, int]:
    level, _, count = source.removeprefix(PREFIX).partition(":")
    if level not in OFFERED_LOAD:
        raise UsageError(unknown_name("level of contention", level, OFFERED_LOAD))
    if not count:
        return level, DEFAULT_JOBS
    if not count.isdecimal() or len(count) > len(str(MAX_JOBS)) or not 0 < int(count) <= MAX_JOBS:
        raise UsageError(
            f"{source!r} requests {count!r} jobs: expected a number from 1 to {MAX_JOBS}, such as {PREFIX}{level}:400"
        )
    return level, int(count)


def _largest(sizes: Sequence[int], num_devices: int) -> int:
    return max((size for size in sizes if size <= num_devices), default=sizes[0])


def _typical_device_s(kind: JobKind) -> float:
    return sum(map(kind.device_s, kind.requested_sizes)) / len(kind.requested_sizes)


def own_kinds() -> list[JobKind]:
    """The synthetic training runs in :data:`MODELS`."""
    kinds = []
    for model in MODELS:
        times = {}
        for size in doubling_sizes(1, model.max_workers, *model.requested_sizes):
            exposed_s = model.bandwidth_s * (size - 1) / size + model.latency_s * (size - 1)
            times[size] = StepTime(model.compute_s / size + exposed_s, exposed_s)
        kinds.append(JobKind(model.name, TableProfile(times), model.total_steps, model.requested_sizes))
    return kinds


def measured_kinds(applications: ApplicationFolder) -> list[JobKind]:
    """Every application at two batch sizes, without the largest: few people train at the extreme."""
    kinds = []
    for name in applications.names():
        application = applications.application(name)
        for batch_size in application.batch_sizes[-3:-1] or application.batch_sizes:
            profile = application.profile(batch_size)
            steps = application.total_steps(batch_size)
            if steps is None:
                # Speed tables do not have a length: assume 8 hours on one device.
                steps = 8 * 3600 / profile.step_time((1,)).step_s
            wanted = tuple(size for size in (4, 6, 8, 12, 16) if size in profile.sizes) or profile.sizes[-1:]
            kinds.append(JobKind(name, profile, steps, wanted))
    return kinds
