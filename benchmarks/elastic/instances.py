"""Random moments in the life of a cluster: jobs with part of their work left, all waiting for a decision."""

from __future__ import annotations

import random
from collections.abc import Sequence

from weft.core.cluster import Cluster
from weft.core.job import JobSpec
from weft.core.snapshot import JobView, Snapshot
from weft.core.speed import SpeedCurve
from weft.sim.synthetic import JobKind


def curves_of(kinds: Sequence[JobKind], cluster: Cluster) -> list[SpeedCurve]:
    """Speed curves as the simulator tells them to a policy: workers packed on as few nodes as possible."""
    return [
        SpeedCurve(
            {
                size: kind.profile.step_time(cluster.packed_shape(size))
                for size in kind.profile.sizes
                if size <= cluster.num_devices
            }
        )
        for kind in kinds
    ]


def random_snapshot(
    draw: random.Random,
    kinds: Sequence[JobKind],
    curves: Sequence[SpeedCurve],
    cluster: Cluster,
    num_jobs: int,
    *,
    running: bool = False,
) -> Snapshot:
    """``num_jobs`` jobs of random kinds; ``running`` gives them up to four workers while devices last."""
    views = []
    free = cluster.num_devices
    for number in range(num_jobs):
        which = draw.randrange(len(kinds))
        kind, curve = kinds[which], curves[which]
        spec = JobSpec(
            f"{kind.name}-{number}",
            submitted_s=float(number),
            max_workers=curve.sizes[-1],
            requested_workers=min(draw.choice(kind.requested_sizes), curve.sizes[-1]),
            sizes=() if len(curve.sizes) == curve.sizes[-1] else curve.sizes,
        )
        workers = draw.choice([size for size in curve.sizes if size <= 4]) if running else 0
        workers = workers if workers <= free else 0
        free -= workers
        remaining = kind.total_steps * draw.uniform(0.05, 1.0)
        views.append(JobView(spec, curve, remaining, restart_s=30.0, workers=workers, settled_s=900.0))
    return Snapshot(float(num_jobs), cluster, tuple(views))
