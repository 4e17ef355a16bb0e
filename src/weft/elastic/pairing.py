"""Crossover: who takes turns with whom, decided together with the sizes.

[Note: one price for singles and pairs]
At a price per device a job alone is worth v_i = max_w u_i(w) -
price w, and two jobs taking turns on the same devices v_ij = max_w u_ij(w) - price w.  A matching of
greatest weight v_ij - v_i - v_j then says who pairs up at that price, and the devices all of them ask for
say whether the price was right.  With the pairs found at the right price, every pair is one more row of
the exact knapsack of singles, and sizes are chosen once more for all.  The result is taken only if it is
worth more than the best allocation without pairs.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence, Set
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from weft.core.cluster import Cluster
from weft.elastic.assignment import best_assignment
from weft.elastic.menu import Menu, packs_well
from weft.perf.crossover import MIN_GAIN, filler_speeds, turns_speeds

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

MAX_PAIR_SIZES = 24
MAX_CANDIDATES = 128
"""Only so many jobs are looked at for pairing: the number of pairs grows with the square."""
_PRICE_STEPS = 12
_MAX_KEPT_CURVES = 2000
_LEARNED_AT_ONCE = 4096


class Sharing(enum.Enum):
    """How the first job of a pair shares its devices with the second."""

    TURNS = enum.auto()
    PRIMARY = enum.auto()
    """It keeps its speed, the second runs in its gaps."""
    FILLER = enum.auto()
    """It runs in the gaps of the second, which keeps its speed."""


@dataclass(frozen=True, eq=False)
class PairOptions:
    """Candidate pairs by row: their jobs, and both speeds on each size (0 where pairing does not pay)."""

    first: IntArray
    second: IntArray
    sharing: tuple[Sharing, ...]
    sizes: IntArray
    first_steps_per_s: FloatArray
    second_steps_per_s: FloatArray


Speeds = tuple[FloatArray, FloatArray]


class PairBook:
    """Speeds of pairs of menus, kept from decision to decision."""

    def __init__(self, handover_s: float, cluster: Cluster) -> None:
        self.setting = (handover_s, cluster)
        self.handover_s = handover_s
        self.sizes = pair_sizes(cluster.num_devices, max(cluster.devices_by_node))
        self._curves: dict[Menu, Speeds] = {}
        self._ways: dict[tuple[Menu, Menu], list[tuple[Sharing, int]]] = {}
        """Ways to share that pay, each with its row in the tables of speeds."""
        self._first: list[FloatArray] = []
        self._second: list[FloatArray] = []
        self._tables: Speeds | None = None

    def options(
        self, menus: Sequence[Menu], candidates: Sequence[int], apart: Set[frozenset[int]] = frozenset()
    ) -> PairOptions | None:
        """The pairs among ``candidates`` (rows of ``menus``) that pay on some size, without those to be kept apart."""
        self._learn({menus[row] for row in candidates})
        first, second, sharing, rows = [], [], [], []
        for place, one in enumerate(candidates):
            for other in candidates[place + 1 :]:
                if apart and frozenset((one, other)) in apart:
                    continue
                for kind, row in self._ways[menus[one], menus[other]]:
                    first.append(one)
                    second.append(other)
                    sharing.append(kind)
                    rows.append(row)
        if not first:
            return None
        if self._tables is None:
            self._tables = (np.array(self._first), np.array(self._second))
        return PairOptions(
            np.array(first),
            np.array(second),
            tuple(sharing),
            self.sizes,
            self._tables[0][rows],
            self._tables[1][rows],
        )

    def _learn(self, menus: set[Menu]) -> None:
        new = [menu for menu in menus if menu not in self._curves]
        if not new:
            return
        if len(self._curves) > _MAX_KEPT_CURVES:
            for kept in (self._curves, self._ways, self._first, self._second):
                kept.clear()
            new = list(menus)
        for menu in new:
            at = {size: column for column, size in enumerate(menu.sizes)}
            columns = [at.get(int(size), -1) for size in self.sizes]
            step = np.array([menu.step_s[column] if column >= 0 else np.nan for column in columns])
            exposed = np.array([menu.exposed_s[column] if column >= 0 else np.nan for column in columns])
            self._curves[menu] = (step, exposed)
        known = list(self._curves)
        pairs = [(one, other) for one in known for other in known if (one, other) not in self._ways]
        for start in range(0, len(pairs), _LEARNED_AT_ONCE):
            self._learn_pairs(pairs[start : start + _LEARNED_AT_ONCE])

    def _learn_pairs(self, pairs: Sequence[tuple[Menu, Menu]]) -> None:
        mine = [np.array([self._curves[one][kind] for one, _ in pairs]) for kind in (0, 1)]
        theirs = [np.array([self._curves[other][kind] for _, other in pairs]) for kind in (0, 1)]
        by_turns = turns_speeds(mine[0], mine[1], theirs[0], theirs[1], self.handover_s)
        as_primary = filler_speeds(mine[0], mine[1], theirs[0], theirs[1], self.handover_s)
        second, first, filler_gain = filler_speeds(theirs[0], theirs[1], mine[0], mine[1], self.handover_s)
        self._tables = None
        for key in pairs:
            self._ways[key] = []
        for sharing, (one_speed, other_speed, gain) in (
            (Sharing.TURNS, by_turns),
            (Sharing.PRIMARY, as_primary),
            (Sharing.FILLER, (first, second, filler_gain)),
        ):
            pays = gain >= 1 + MIN_GAIN
            one_speed, other_speed = np.where(pays, one_speed, 0.0), np.where(pays, other_speed, 0.0)
            for index in np.flatnonzero(pays.any(axis=1)).tolist():
                self._ways[pairs[index]].append((sharing, len(self._first)))
                self._first.append(one_speed[index])
                self._second.append(other_speed[index])


def pair_sizes(num_devices: int, node: int) -> IntArray:
    """Sizes on which pairs are offered: those that pack well, thinned out where there are many."""
    sizes = [size for size in range(1, num_devices + 1) if packs_well(size, node)]
    if len(sizes) > MAX_PAIR_SIZES:
        wanted = np.geomspace(1, num_devices, MAX_PAIR_SIZES)
        sizes = sorted({min(sizes, key=lambda size: abs(np.log(size / want))) for want in wanted})
    return np.array(sizes, dtype=np.int64)


def match(singles: FloatArray, pairs: PairOptions, values: FloatArray) -> list[int]:
    """Indices into ``pairs`` of a matching with (nearly) the greatest weight over singles.

    The assignment relaxation is solved instead of the matching itself (a hundred times faster): its cycles
    of two are pairs, longer cycles are cut into pairs, losing at most the weakest link of an odd one.
    """
    gain = values - singles[pairs.first] - singles[pairs.second]
    useful = np.flatnonzero(gain > 1e-12 * np.abs(values))
    if not len(useful):
        return []
    rows = np.unique(np.concatenate([pairs.first[useful], pairs.second[useful]]))
    one = np.searchsorted(rows, pairs.first[useful])
    other = np.searchsorted(rows, pairs.second[useful])
    weight = np.zeros((len(rows), len(rows)))
    number = np.full((len(rows), len(rows)), -1)
    rising = np.argsort(gain[useful], kind="stable")  # of several ways to share, the best is written last
    one, other, useful = one[rising], other[rising], useful[rising]
    weight[one, other] = weight[other, one] = gain[useful]
    number[one, other] = number[other, one] = useful
    target = best_assignment(weight)
    chosen: list[int] = []
    seen = [False] * len(rows)
    for start in range(len(rows)):
        cycle = []
        at = start
        while not seen[at]:
            seen[at] = True
            cycle.append(at)
            at = target[at]
        if len(cycle) == 2 and number[cycle[0], cycle[1]] >= 0:
            chosen.append(int(number[cycle[0], cycle[1]]))
        elif len(cycle) > 2:
            chosen.extend(_cut(cycle, weight, number))
    return chosen


def _cut(cycle: list[int], weight: FloatArray, number: IntArray) -> list[int]:
    """The best pairs of neighbours along a cycle, each member in at most one."""
    num = len(cycle)
    best_weight, best = 0.0, []
    for shift in range(num if num % 2 else min(num, 2)):
        order = cycle[shift:] + cycle[:shift]
        links = [(order[place], order[place + 1]) for place in range(0, num - 1, 2)]
        links = [link for link in links if weight[link] > 0]
        total = sum(float(weight[link]) for link in links)
        if total > best_weight:
            best_weight, best = total, [int(number[link]) for link in links]
    return best


def choose_pairs(
    utility: FloatArray, sizes: IntArray, capacity: int, pairs: PairOptions, pair_utility: FloatArray
) -> list[int]:
    """The pairs that are worth it at the price at which singles and pairs together just fit ``capacity``."""

    def at(price: float) -> tuple[list[int], int]:
        values = utility - price * sizes
        column = values.argmax(axis=1)
        alone = values[np.arange(len(values)), column]
        used = sizes[np.arange(len(values)), column]
        pair_values = pair_utility - price * pairs.sizes
        pair_column = pair_values.argmax(axis=1)
        best = pair_values[np.arange(len(pair_values)), pair_column]
        chosen = match(alone, pairs, best)
        num = int(used.sum())
        for index in chosen:
            num += int(pairs.sizes[pair_column[index]])
            num -= int(used[pairs.first[index]] + used[pairs.second[index]])
        return chosen, num

    chosen, num = at(0.0)
    if num <= capacity:
        return chosen
    low, high = 0.0, float(np.max(utility[:, 1:][np.isfinite(utility[:, 1:])]))
    for _ in range(_PRICE_STEPS):
        middle = (low + high) / 2 if low else high / 8
        found, num = at(middle)
        if num <= capacity:
            high, chosen = middle, found
            if num == capacity:
                break
        else:
            low = middle
    return chosen
