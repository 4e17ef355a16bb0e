"""Policies that maximise a sum of utilities exactly: the paper's program, and the default."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from weft.core.snapshot import Allocation, Snapshot
from weft.elastic.knapsack import best_choices
from weft.elastic.policy import BasePolicy, ordered
from weft.elastic.rules import Rules, admitted, weight_of

FloatArray = NDArray[np.float64]


class UtilityPolicy(BasePolicy):
    """Maximises the summed utility of remaining times, a restart counted where a job would change its size."""

    def utility(self, times_s: FloatArray, weights: FloatArray) -> FloatArray:
        """Utility of ending after ``times_s`` (infinite: not running)."""
        raise NotImplementedError

    def _decide(self, snapshot: Snapshot) -> Allocation:
        jobs = snapshot.jobs
        table = self._book.table(snapshot.cluster, jobs)
        remaining = np.array([job.remaining_steps for job in jobs])
        restart_s = np.array([job.restart_s for job in jobs])
        current = np.array([job.workers for job in jobs])
        weights = np.array([weight_of(job) for job in jobs])
        times_s = remaining[:, None] * table.step_s
        times_s += (table.sizes != current[:, None]) * restart_s[:, None]
        utility = self.utility(times_s, weights[:, None])
        choice = best_choices(utility, table.sizes, snapshot.cluster.num_devices)
        picked = table.sizes[np.arange(len(jobs)), choice].tolist()
        workers = {job.name: size for job, size in zip(jobs, picked, strict=True) if size}
        valid_until_s = min(self.rules.next_due_s(snapshot), snapshot.now_s + self.rules.review_s)
        return Allocation(workers, valid_until_s=valid_until_s)


class Balanced(UtilityPolicy):
    """Maximises the sum of weight x T^-p."""

    name = "balanced"
    because = "this split of the devices maximises the sum of weight / remaining time ^ 0.5"

    def __init__(self, rules: Rules | None = None, exponent: float = 0.5) -> None:
        super().__init__(rules)
        self.exponent = exponent

    def utility(self, times_s: FloatArray, weights: FloatArray) -> FloatArray:
        return weights * times_s**-self.exponent


class Exact(UtilityPolicy):
    """Minimises the sum of remaining times."""

    name = "exact"
    because = "this split of the devices minimises the summed remaining time"

    def utility(self, times_s: FloatArray, weights: FloatArray) -> FloatArray:
        return -weights * np.minimum(times_s, 1e9)
