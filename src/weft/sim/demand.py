"""The least that jobs need: the optimistic view of a workload behind every lower bound.

At each of its sizes a job has some speed and occupies some devices.  For a bound, each size counts as if it had the
best placement, and a job may mix its sizes over time, so what matters is the upper hull of the points (devices
occupied, steps per second).

With crossover two jobs share devices, and a device counts as occupied by a job only while that job computes on it.
Taking turns makes neither job faster than alone, and two jobs never compute on a device at the same time: the compute
of both fits in the time that passes, whether they alternate or one fills the gaps of the other.  So the points (devices
x compute / step, 1 / step) stay optimistic for pairs too, and every bound based on them holds with crossover.

Where devices are of several kinds, every device counts as one of the kind on which the job is fastest at that size.  No
schedule can do better, so the bounds hold; but the more the kinds differ, the further they are from what is possible.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from weft.core.cluster import Cluster
from weft.core.speed import StepTime
from weft.sim.device_kinds import KindProfile, ScaledProfile
from weft.sim.replay_options import SimulationOptions
from weft.sim.workload import Profile, TableProfile, Workload

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


@runtime_checkable
class SelfBounding(Protocol):
    """A profile that knows its best step time at a size without trying every placement."""

    def best_step_time(self, num_workers: int) -> StepTime: ...


@dataclass(frozen=True)
class Hull:
    """Corners of the concave speed curve of one kind of job, from the smallest to the fastest."""

    devices: FloatArray
    steps_per_s: FloatArray

    @property
    def top_steps_per_s(self) -> float:
        return float(self.steps_per_s[-1])

    @property
    def least_device_s_per_step(self) -> float:
        # On a concave curve through the origin, the first corner has the best ratio.
        return float(self.devices[0] / self.steps_per_s[0])


@dataclass(frozen=True)
class Demand:
    """A workload as the bounds see it; arrays have one entry per job."""

    hulls: tuple[Hull, ...]
    kind: IntArray
    submitted_s: FloatArray
    ready_s: FloatArray
    """When each job can first make progress."""
    total_steps: FloatArray
    num_devices: int

    @property
    def alone_s(self) -> FloatArray:
        """Time from ready to finished with the whole cluster to itself."""
        top = np.array([hull.top_steps_per_s for hull in self.hulls])
        return np.asarray(self.total_steps / top[self.kind])

    @property
    def device_s(self) -> FloatArray:
        """Device time at the most economical size."""
        least = np.array([hull.least_device_s_per_step for hull in self.hulls])
        return np.asarray(self.total_steps * least[self.kind])


def demand_of(workload: Workload, cluster: Cluster, options: SimulationOptions) -> Demand:
    """A job waits for the next decision and its first start before it makes progress."""
    hulls: list[Hull] = []
    known: dict[tuple[int, tuple[int, ...]], int] = {}
    kinds = []
    for job in workload.jobs:
        sizes = tuple(
            size for size in job.spec.allowed_sizes(cluster.most_of_one_kind) if size in set(job.profile.sizes)
        )
        key = (id(job.profile), sizes)
        if key not in known:
            known[key] = len(hulls)
            hulls.append(_hull(job.profile, sizes, cluster, crossover=options.crossover))
        kinds.append(known[key])
    submitted_s = np.array([job.spec.submitted_s for job in workload.jobs])
    interval_s = options.decision_interval_s
    decided_s = np.ceil(submitted_s / interval_s) * interval_s if interval_s else submitted_s
    return Demand(
        tuple(hulls),
        np.array(kinds),
        submitted_s,
        decided_s + np.array([job.start_cost_s(options.restart_s) for job in workload.jobs]),
        np.array([job.total_steps for job in workload.jobs]),
        cluster.num_devices,
    )


def _hull(profile: Profile, sizes: tuple[int, ...], cluster: Cluster, *, crossover: bool) -> Hull:
    points = []
    for size in sizes:
        time = _best_step_time(profile, size, cluster)
        occupied = size * time.compute_s / time.step_s if crossover else float(size)
        points.append((occupied, 1.0 / time.step_s))
    corners = [(0.0, 0.0)]
    for devices, speed in sorted(points, key=lambda point: (point[0], -point[1])):
        if speed <= corners[-1][1]:
            continue
        while len(corners) > 1 and _turns_up(corners[-2], corners[-1], (devices, speed)):
            corners.pop()
        corners.append((devices, speed))
    return Hull(np.array([d for d, _ in corners[1:]]), np.array([s for _, s in corners[1:]]))


def _turns_up(a: tuple[float, float], b: tuple[float, float], c: tuple[float, float]) -> bool:
    return (c[1] - b[1]) * (b[0] - a[0]) >= (b[1] - a[1]) * (c[0] - b[0])


def _best_step_time(profile: Profile, num_workers: int, cluster: Cluster) -> StepTime:
    if isinstance(profile, KindProfile):
        profiles = [one for one in profile.by_kind.values() if num_workers in one.sizes]
        return _least([_best_step_time(one, num_workers, cluster) for one in profiles])
    if isinstance(profile, ScaledProfile):
        return _best_scaled(profile, _best_step_time(profile.profile, num_workers, cluster))
    if isinstance(profile, TableProfile):
        return profile.step_time((num_workers,))
    if isinstance(profile, SelfBounding):
        return profile.best_step_time(num_workers)
    return _least([profile.step_time(shape) for shape in shapes(num_workers, max(cluster.devices_by_node))])


def _least(times: Sequence[StepTime]) -> StepTime:
    """The shortest step and, independently, the least compute."""
    step_s = min(time.step_s for time in times)
    return StepTime(step_s, step_s - min(step_s, *(time.compute_s for time in times)))


def _best_scaled(profile: ScaledProfile, best: StepTime) -> StepTime:
    """No step is shorter than this if none of the unscaled ones is shorter, or computes less, than ``best``."""
    if isinstance(profile.profile, TableProfile):
        return profile.scaled(best)
    compute_s = best.compute_s / profile.factor
    # compute / f + exposed is at least step / f, and for f < 1 at least step + compute x (1 / f - 1).
    slower_s = best.step_s + compute_s - best.compute_s
    step_s = best.step_s / profile.factor if profile.factor > 1 else slower_s
    return StepTime(step_s, step_s - min(step_s, compute_s))


def shapes(num_workers: int, devices_per_node: int) -> Iterator[tuple[int, ...]]:
    """Every way to distribute ``num_workers`` over nodes, in every order.

    >>> list(shapes(3, 2))
    [(2, 1), (1, 2), (1, 1, 1)]
    """
    for first in range(min(num_workers, devices_per_node), 0, -1):
        if first == num_workers:
            yield (first,)
            continue
        for rest in shapes(num_workers - first, devices_per_node):
            yield (first, *rest)


def spread(values: FloatArray, num: int) -> FloatArray:
    """``num`` points in time: half spread evenly over the range of ``values``, half distributed like the values."""
    half = max(2, math.ceil(num / 2))
    even = np.linspace(values.min(), values.max(), half)
    return np.unique(np.concatenate([even, np.quantile(values, np.linspace(0.0, 1.0, half))]))
