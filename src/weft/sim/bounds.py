"""No schedule of these jobs on this cluster, by any policy, has a lower mean completion time than this.

Three bounds, each proven by itself; the largest counts.

* **alone**: every job starts at once and runs at its best size, as if nobody else were there.
* **srpt**: the cluster as one machine on which every job needs only its most economical device time.  On one
  machine with preemption, shortest remaining time first is optimal for the sum of completion times, and the
  machine can imitate whatever the cluster does.
* **priced**: the Lagrangian bound of :mod:`weft.sim.price_bound`, which sees both limits at once.

All three rest on :mod:`weft.sim.demand`, where it is argued that they also hold when jobs share devices by
crossover.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np

from weft.core.cluster import Cluster
from weft.sim.demand import FloatArray, demand_of
from weft.sim.price_bound import priced_completion_sum_s
from weft.sim.replay_options import SimulationOptions
from weft.sim.workload import Workload


@dataclass(frozen=True, slots=True)
class LowerBound:
    """Lower bounds on the mean completion time."""

    alone_s: float
    srpt_s: float
    priced_s: float

    @property
    def mean_jct_s(self) -> float:
        return max(self.alone_s, self.srpt_s, self.priced_s)


def lower_bound(workload: Workload, cluster: Cluster, options: SimulationOptions) -> LowerBound:
    """Bounds for every policy under ``options``."""
    demand = demand_of(workload, cluster, options)
    ends_s = srpt_ends_s(demand.ready_s, demand.device_s / demand.num_devices)
    num_jobs = len(workload.jobs)
    submitted_s = float(demand.submitted_s.sum())
    return LowerBound(
        alone_s=float((demand.ready_s + demand.alone_s).sum() - submitted_s) / num_jobs,
        srpt_s=float(ends_s.sum() - submitted_s) / num_jobs,
        priced_s=(priced_completion_sum_s(demand, ends_s) - submitted_s) / num_jobs,
    )


def srpt_ends_s(ready_s: FloatArray, length_s: FloatArray) -> FloatArray:
    """Ends, in order, of shortest remaining time first on one machine.

    >>> srpt_ends_s(np.array([0.0, 1.0]), np.array([10.0, 2.0])).tolist()
    [3.0, 12.0]
    """
    order = np.argsort(ready_s, kind="stable")
    ready, length = ready_s[order].tolist(), length_s[order].tolist()
    ends: list[float] = []
    waiting: list[float] = []
    now_s, arrived = 0.0, 0
    while len(ends) < len(ready):
        if not waiting:
            now_s = max(now_s, ready[arrived])
        while arrived < len(ready) and ready[arrived] <= now_s:
            heapq.heappush(waiting, length[arrived])
            arrived += 1
        left_s = heapq.heappop(waiting)
        next_s = ready[arrived] if arrived < len(ready) else float("inf")
        if now_s + left_s <= next_s:
            now_s += left_s
            ends.append(now_s)
        else:
            heapq.heappush(waiting, left_s - (next_s - now_s))
            now_s = next_s
    return np.array(ends)
