"""How long one decision takes on a large cluster, and how that grows with the number of jobs."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Sequence
from typing import Any

from weft.core.cluster import Cluster
from weft.elastic import policy_named
from weft.sim.studies.instances import curves_of, random_snapshot
from weft.sim.synthetic import JobKind

NUM_GPUS = 1024
GPUS_PER_NODE = 8
REPEATS = 5


def decision_times(
    kinds: Sequence[JobKind], policies: Sequence[str], *, job_counts: Sequence[int] = (500,), seed: int = 0
) -> list[dict[str, Any]]:
    """Median milliseconds of a decision per policy and number of jobs, caches warm as in a running system."""
    cluster = Cluster.uniform(NUM_GPUS // GPUS_PER_NODE, GPUS_PER_NODE)
    curves = curves_of(kinds, cluster)
    rows = []
    for num_jobs in job_counts:
        draw = random.Random(f"{seed} {num_jobs}")
        snapshots = [
            random_snapshot(draw, kinds, curves, cluster, num_jobs, running=True) for _ in range(REPEATS)
        ]
        for name in policies:
            policy = policy_named(name)
            policy.decide(snapshots[0])
            took_ms = []
            for snapshot in snapshots:
                began = time.perf_counter()
                policy.decide(snapshot)
                took_ms.append(1e3 * (time.perf_counter() - began))
            rows.append(
                {
                    "policy": name,
                    "jobs": num_jobs,
                    "gpus": NUM_GPUS,
                    "decision_ms": round(statistics.median(took_ms), 3),
                    "worst_ms": round(max(took_ms), 3),
                }
            )
    return rows
