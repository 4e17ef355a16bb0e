"""Lower bounds on the mean completion time of these jobs on this cluster, for any policy.

Three bounds, each valid on its own; the largest counts.

* **alone**: every job starts immediately and runs at its best size, as if it were the only one.
* **srpt**: the cluster as one machine on which every job needs only its most economical device time.  On one machine
  with preemption, shortest remaining time first is optimal for the sum of completion times, and the machine can imitate
  whatever the cluster does.
* **priced**: a Lagrangian bound that combines both limits (see the note).

All three are based on :mod:`weft.sim.demand`, which shows that they also hold when jobs share devices by crossover.

[Note: prices]
Divide time into slots and let a device second in slot t cost ``price[t]`` >= 0.  Charge every job for what it uses, and
return the cluster's whole capacity as income:

    sum of ends  >=  sum over jobs of min (end + price of the devices used)  -  capacity x prices

because a real schedule uses no more than the capacity.  This holds for *every* choice of prices (weak duality), so
prices need only be good, not optimal, and the search for them may stop at any time.

Consider one job that ends in some slot e.  Until then it buys speed on its hull, slot by slot; in the last slot every
second also counts as a second of completion time.  With ``worth`` the value of one step, a job that ends in slot e pays
at least (again by weak duality, for every worth)

    start of e + worth x steps - sum over slots before e of length x profit - length of e x profit in e

where the profit in a slot is the maximum of worth x speed - price x devices over the hull (minus 1 in e), or 0.  We
take the best worth from a list, then the cheapest e.  Prices follow demand: up where jobs would buy more than the
capacity, down where they buy less.  After the last slot devices are free, which is optimistic and therefore valid.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np

from weft.core.cluster import Cluster
from weft.sim.demand import Demand, FloatArray, Hull, IntArray, demand_of, spread
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
        return max(self._by_name.values())

    @property
    def binding(self) -> str:
        """The name of the largest one; of equals the simplest."""
        found = self._by_name
        return max(found, key=found.__getitem__)

    @property
    def _by_name(self) -> dict[str, float]:
        return {"alone": self.alone_s, "srpt": self.srpt_s, "priced": self.priced_s}


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
    """End times, in order, of shortest remaining time first on one machine.

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


NUM_SLOTS = 64
FEW_JOBS = 400
FEW_JOBS_SLOTS = 128
"""Finer slots raise the bound, by about 1 % from 64 to 128; for long logs they would take too long."""
NUM_ROUNDS = 40
# Work per round grows with the number of jobs: long logs get fewer rounds.
ROUNDS_BUDGET = 60_000
MIN_ROUNDS = 3
CHUNK_JOBS = 1024
FIRST_STEP, LAST_STEP = 0.5, 0.05
# Stands for infinity: no bound comes close to 30 years.
FOREVER_S = 1e9
# Worth of a step, in units of the time it takes at best.  At exactly 1 the tail slot is free of charge.
COARSE_WORTHS = np.sort(np.append(np.geomspace(0.02, 400.0, 48), 1.0))
FINE_WORTHS = np.sort(np.append(np.geomspace(0.02, 400.0, 240), 1.0))


@dataclass(frozen=True)
class _Slots:
    edges_s: FloatArray
    length_s: FloatArray


def priced_completion_sum_s(demand: Demand, one_machine_ends_s: FloatArray) -> float:
    """A lower bound on the sum of all end times (not durations)."""
    moments = np.concatenate([demand.ready_s, one_machine_ends_s, demand.ready_s + demand.alone_s])
    edges_s = spread(moments, FEW_JOBS_SLOTS if len(demand.kind) <= FEW_JOBS else NUM_SLOTS)
    if len(edges_s) < 2:
        edges_s = np.append(edges_s, edges_s[-1] + 1.0)
    slots = _Slots(np.append(edges_s, edges_s[-1] + FOREVER_S), np.append(np.diff(edges_s), FOREVER_S))
    capacity = demand.num_devices * slots.length_s[:-1]
    prices = _first_prices(demand, one_machine_ends_s, edges_s)
    floor = 1e-3 / demand.num_devices
    num_rounds = int(np.clip(ROUNDS_BUDGET / len(demand.kind), MIN_ROUNDS, NUM_ROUNDS))
    best, best_prices = -np.inf, prices
    for turn in range(num_rounds):
        total, used = _evaluate(demand, slots, prices, COARSE_WORTHS)
        if total > best:
            best, best_prices = total, prices
        step = FIRST_STEP * (LAST_STEP / FIRST_STEP) ** (turn / num_rounds)
        excess = np.clip(used[:-1] / capacity - 1.0, -1.0, 1.0)
        prices = np.append(np.maximum(prices[:-1], floor) * np.exp(step * excess), 0.0)
    if num_rounds == NUM_ROUNDS:
        best = max(best, _evaluate(demand, slots, best_prices, FINE_WORTHS)[0])
    return float(best)


def _first_prices(demand: Demand, ends_s: FloatArray, edges_s: FloatArray) -> FloatArray:
    """On one machine, a second of delay costs every job in the queue a second."""
    middle_s = (edges_s[:-1] + edges_s[1:]) / 2
    arrived = np.searchsorted(np.sort(demand.ready_s), middle_s, side="right")
    left = np.searchsorted(np.sort(ends_s), middle_s, side="right")
    return np.append((arrived - left) / demand.num_devices, 0.0)


def _evaluate(demand: Demand, slots: _Slots, prices: FloatArray, worths: FloatArray) -> tuple[float, FloatArray]:
    """The bound at these prices, and the device time that the jobs would buy in each slot."""
    total = -float(demand.num_devices * (prices * slots.length_s)[:-1].sum())
    used = np.zeros(len(prices))
    for kind, hull in enumerate(demand.hulls):
        members = np.flatnonzero(demand.kind == kind)
        offers = _Offers(hull, slots, prices, worths)
        for start in range(0, len(members), CHUNK_JOBS):
            chunk = members[start : start + CHUNK_JOBS]
            cost, bought = offers.cheapest(demand.ready_s[chunk], demand.total_steps[chunk])
            total += cost
            used += bought
    return total, used


class _Offers:
    """What one kind of job would buy at each worth (rows) in each slot (columns)."""

    def __init__(self, hull: Hull, slots: _Slots, prices: FloatArray, worths: FloatArray) -> None:
        self.slots = slots
        self.worth = worths / hull.top_steps_per_s
        profit = (
            self.worth[:, None, None] * hull.steps_per_s[None, None, :]
            - prices[None, :, None] * hull.devices[None, None, :]
        )
        choice = profit.argmax(axis=2)
        best = np.take_along_axis(profit, choice[:, :, None], axis=2)[:, :, 0]
        devices = hull.devices[choice]
        self.profit = np.maximum(best, 0.0)
        self.devices = np.where(best > 0, devices, 0.0)
        # In the last slot, a second costs one more because it delays the end.
        self.last_profit = np.maximum(best - 1.0, 0.0)
        self.last_devices = np.where(best > 1.0, devices, 0.0)
        self.before = np.zeros((len(worths), len(prices) + 1))
        np.cumsum(self.profit * slots.length_s, axis=1, out=self.before[:, 1:])

    def cheapest(self, ready_s: FloatArray, steps: FloatArray) -> tuple[float, FloatArray]:
        """Sum over the jobs of the minimum (end + price), and the device time they buy per slot."""
        edges_s, length_s = self.slots.edges_s, self.slots.length_s
        jobs, slots = np.arange(len(ready_s)), np.arange(len(length_s))
        first = np.searchsorted(edges_s, ready_s, side="right") - 1
        first_s = edges_s[first + 1] - ready_s
        value = self.worth[None, :] * steps[:, None]
        early = self.profit[:, first].T * first_s[:, None] - self.before[:, first + 1].T
        # cost[job, worth, slot of the end]
        cost = (value - early)[:, :, None] - (self.before[:, :-1] + self.last_profit * length_s - edges_s[:-1])[None]
        cost[jobs, :, first] = value - self.last_profit[:, first].T * first_s[:, None] + ready_s[:, None]
        by_slot = cost.max(axis=1)
        by_slot[slots[None, :] < first[:, None]] = np.inf
        end = by_slot.argmin(axis=1)
        worth = cost[jobs, :, end].argmax(axis=1)
        return float(by_slot[jobs, end].sum()), self._bought(first, first_s, end, worth)

    def _bought(self, first: IntArray, first_s: FloatArray, end: IntArray, worth: IntArray) -> FloatArray:
        length_s = self.slots.length_s
        jobs, slots = np.arange(len(first)), np.arange(len(length_s))
        inside = (slots[None, :] >= first[:, None]) & (slots[None, :] < end[:, None])
        bought = np.where(inside, self.devices[worth] * length_s, 0.0)
        later = first < end
        bought[jobs[later], first[later]] = (self.devices[worth, first] * first_s)[later]
        bought[jobs, end] = self.last_devices[worth, end] * np.where(later, length_s[end], first_s)
        return np.asarray(bought.sum(axis=0))
