"""What the policy is told about a job, as opposed to what is true of it."""

from __future__ import annotations

import random
from collections.abc import Collection

from weft.core.cluster import Cluster
from weft.core.speed import SpeedCurve, StepTime
from weft.perf.exploration import explored_curve
from weft.sim.options import SimulationOptions
from weft.sim.workload import Profile, TrueJob


class Knowledge:
    """Speed curves and remaining work as the policy believes them to be."""

    def __init__(self, cluster: Cluster, options: SimulationOptions) -> None:
        self._cluster = cluster
        self._options = options
        self._true: dict[Profile, SpeedCurve] = {}
        self._explored: dict[tuple[Profile, frozenset[int]], SpeedCurve] = {}
        self._wrong: dict[tuple[str, SpeedCurve], SpeedCurve] = {}

    def curve(self, job: TrueJob, tried: Collection[int] = ()) -> SpeedCurve:
        """Step times by size, packed on as few nodes as possible, of a job that has run at the sizes ``tried``."""
        curve = self._curve_of(job.profile)
        if self._options.explore:
            curve = self._explored_curve(job, tried, curve)
        if self._options.prediction_error:
            curve = self._wrong_curve(job, curve)
        return curve

    def steps_factor(self, job: TrueJob) -> float:
        """The estimate of what remains is off by the same factor all along, as that of a wrong target would be."""
        if not self._options.prediction_error:
            return 1.0
        draw = random.Random(f"steps {self._options.seed} {job.spec.name}")
        return draw.lognormvariate(0.0, self._options.prediction_error)

    def _curve_of(self, profile: Profile) -> SpeedCurve:
        curve = self._true.get(profile)
        if curve is None:
            cluster = self._cluster
            sizes = [size for size in profile.sizes if size <= cluster.num_devices]
            times = {size: profile.step_time(cluster.packed_shape(size)) for size in sizes}
            curve = self._true[profile] = SpeedCurve(times)
        return curve

    def _explored_curve(self, job: TrueJob, tried: Collection[int], true: SpeedCurve) -> SpeedCurve:
        """Only what was tried is known: the smallest size at first, later up to twice the largest tried."""
        allowed = [size for size in job.spec.allowed_sizes(self._cluster.num_devices) if size in true.times]
        measured = frozenset(size for size in tried if size in true.times)
        if not measured:
            return self._explored.setdefault(
                (job.profile, frozenset({-allowed[0]})), SpeedCurve({allowed[0]: true.times[allowed[0]]})
            )
        key = (job.profile, measured)
        if key not in self._explored:
            seen = {self._cluster.packed_shape(size): true.times[size] for size in sorted(measured)}
            self._explored[key] = explored_curve(seen, true.sizes, self._cluster)
        return self._explored[key]

    def _wrong_curve(self, job: TrueJob, curve: SpeedCurve) -> SpeedCurve:
        key = (job.spec.name, curve)
        if key not in self._wrong:
            draw = random.Random(f"speed {self._options.seed} {job.spec.name}")
            factors = {
                size: draw.lognormvariate(0.0, self._options.prediction_error) for size in range(1, 1 + curve.sizes[-1])
            }
            self._wrong[key] = SpeedCurve(
                {
                    size: StepTime(time.step_s * factors[size], time.exposed_s * factors[size])
                    for size, time in curve.times.items()
                }
            )
        return self._wrong[key]
