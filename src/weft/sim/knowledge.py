"""What the policy is told about a job, as opposed to what is true of it."""

from __future__ import annotations

from weft.core.cluster import Cluster
from weft.core.speed import SpeedCurve
from weft.sim.lifecycle import JobRun
from weft.sim.options import SimulationOptions
from weft.sim.workload import Profile


class Knowledge:
    """Speed curves and remaining work as the policy believes them to be."""

    def __init__(self, cluster: Cluster, options: SimulationOptions) -> None:
        self._cluster = cluster
        self._options = options
        self._true: dict[Profile, SpeedCurve] = {}

    def curve(self, run: JobRun) -> SpeedCurve:
        profile = run.job.profile
        curve = self._true.get(profile)
        if curve is None:
            curve = self._true[profile] = SpeedCurve(
                {
                    size: profile.step_time(self._cluster.packed_shape(size))
                    for size in profile.sizes
                    if size <= self._cluster.num_devices
                }
            )
        return curve

    def remaining_steps(self, run: JobRun) -> float:
        return run.remaining_steps
