"""How long one decision takes on a large cluster, and how fast whole workloads are replayed.

Both in CPU time, not wall-clock time: a busy machine must not make the program look slow.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from benchmarks.elastic.instances import curves_of, random_snapshot
from weft.core.cluster import Cluster
from weft.elastic import policy_named
from weft.sim.readers.assembly import fit_requests
from weft.sim.replay import simulate
from weft.sim.replay_options import SimulationOptions
from weft.sim.synthetic import JobKind
from weft.sim.workload import Workload

NUM_GPUS = 1024
GPUS_PER_NODE = 8
REPEATS = 5
SHARING = ("balanced",)
"""Policies that are also timed while they look for jobs to share devices."""


def decision_times(
    kinds: Sequence[JobKind], policies: Sequence[str], *, job_counts: Sequence[int]
) -> list[dict[str, Any]]:
    """Median milliseconds of a decision per policy and number of jobs, caches warm as in a running system."""
    cluster = Cluster.uniform(NUM_GPUS // GPUS_PER_NODE, GPUS_PER_NODE)
    curves = curves_of(kinds, cluster)
    rows = []
    for num_jobs in job_counts:
        draw = random.Random(f"0 {num_jobs}")
        snapshots = [random_snapshot(draw, kinds, curves, cluster, num_jobs, running=True) for _ in range(REPEATS)]
        variants = [(name, False) for name in policies] + [(name, True) for name in policies if name in SHARING]
        for name, crossover in variants:
            policy = policy_named(name)
            asked = [replace(snapshot, crossover=crossover) for snapshot in snapshots]
            policy.decide(asked[0])
            took_ms = [1e3 * _core_s(partial(policy.decide, snapshot)) for snapshot in asked]
            rows.append(
                {
                    "policy": name,
                    "crossover": crossover,
                    "jobs": num_jobs,
                    "gpus": NUM_GPUS,
                    "decision_ms": round(statistics.median(took_ms), 3),
                    "worst_ms": round(max(took_ms), 3),
                }
            )
    return rows


def replay_speeds(
    workloads: Sequence[Workload], policies: Sequence[str], cluster: Cluster, *, repeats: int = 3
) -> list[dict[str, Any]]:
    """Jobs replayed per second by policy: median of a few runs, on the slowest and the typical workload.

    With crossover, on a quarter of the nodes too: pairs form only while jobs outnumber devices.
    """
    rows = []
    crowded = Cluster(cluster.devices_by_node[: max(1, cluster.num_nodes // 4)])
    sharing = [name for name in policies if name in SHARING]
    variants = [(name, False, cluster) for name in policies]
    variants += [(name, True, place) for place in (cluster, crowded) for name in sharing]
    for name, crossover, place in variants:
        speeds, num_paired = [], 0
        for workload in workloads:
            fitted, _ = fit_requests(workload, place.num_devices)
            options = SimulationOptions(crossover=crossover)
            replay = partial(simulate, fitted, place, policy_named(name), options)
            speeds.append(len(fitted.jobs) / statistics.median(_core_s(replay) for _ in range(repeats)))
            if crossover:
                num_paired += len({span.job for span in replay().spans if span.partner})
        rows.append(
            {
                "policy": name,
                "crossover": crossover,
                "gpus": place.num_devices,
                "paired_jobs": num_paired,
                "slowest_jobs_per_s": round(min(speeds), 1),
                "median_jobs_per_s": round(statistics.median(speeds), 1),
            }
        )
    return rows


def _core_s(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began
