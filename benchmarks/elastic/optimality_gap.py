"""How far the doubling heuristic is from the exact solution of its own objective.

The objective is the sum over jobs of the remaining time at the allotted size.  Instances: random jobs of the given
kinds with 5 to 100 % of their work left, on clusters of 16 to 128 devices, at most half as many jobs as devices (so
that every job gets at least one worker, as the objective requires, and devices are left to distribute).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.elastic.instances import curves_of, random_snapshot
from weft.core.cluster import Cluster
from weft.core.snapshot import Allocation, Snapshot
from weft.elastic import policy_named
from weft.sim.synthetic import JobKind

CLUSTER_NODES = (4, 8, 16, 32)
DEVICES_PER_NODE = 4


@dataclass(frozen=True, slots=True)
class GapStudy:
    """Relative gaps, one per instance."""

    gaps: tuple[float, ...]

    def row(self) -> dict[str, float | int]:
        ordered = sorted(self.gaps)
        num = len(ordered)
        return {
            "instances": num,
            "mean_gap": round(sum(ordered) / num, 5),
            "median_gap": round(ordered[num // 2], 5),
            "p95_gap": round(ordered[min(num - 1, int(0.95 * num))], 5),
            "worst_gap": round(ordered[-1], 5),
            "optimal_share": round(sum(gap < 1e-9 for gap in ordered) / num, 4),
        }


def optimality_gaps(
    kinds: Sequence[JobKind],
    *,
    num_instances: int,
    progress: Callable[[int, int], None] | None = None,
) -> GapStudy:
    """Gap of ``doubling`` over ``exact`` on random instances."""
    draw = random.Random(0)
    heuristic, optimum = policy_named("doubling"), policy_named("exact")
    clusters = [Cluster.uniform(nodes, DEVICES_PER_NODE) for nodes in CLUSTER_NODES]
    curves = {id(cluster): curves_of(kinds, cluster) for cluster in clusters}
    gaps = []
    for number in range(num_instances):
        cluster = draw.choice(clusters)
        num_jobs = draw.randint(2, cluster.num_devices // 2)
        snapshot = random_snapshot(draw, kinds, curves[id(cluster)], cluster, num_jobs)
        best_s = summed_time_s(snapshot, optimum.decide(snapshot))
        gaps.append(summed_time_s(snapshot, heuristic.decide(snapshot)) / best_s - 1.0)
        if progress:
            progress(number + 1, num_instances)
    return GapStudy(tuple(gaps))


def summed_time_s(snapshot: Snapshot, allocation: Allocation) -> float:
    """The paper's objective: remaining time at the allotted sizes, summed; infinite if a job has none."""
    total_s = 0.0
    for job in snapshot.jobs:
        workers = allocation.workers.get(job.id, 0)
        if not workers:
            return float("inf")
        total_s += job.remaining_steps * job.curve.times[workers].step_s
    return total_s
