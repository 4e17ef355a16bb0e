"""Who pairs up with whom, decided together with the sizes.

[Note: one price for singles and pairs]
At a price per device, a job alone is worth v_i = max_w u_i(w) - price w, and two jobs that share the same devices are
worth v_ij = max_w u_ij(w) - price w.  A matching with the greatest weight v_ij - v_i - v_j then says who pairs up at
that price, and the number of devices all of them ask for says whether the price was right.  With the pairs found at
the right price, every pair becomes one more row of the exact knapsack of singles, and sizes are chosen once more for
everyone.  The result is used only if it is worth more than the best allocation without pairs.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from weft.elastic.assignment_problem import best_assignment
from weft.elastic.pairing import PairOptions

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

_PRICE_STEPS = 12


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
