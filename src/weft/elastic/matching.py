"""Which jobs form pairs, decided together with the sizes.

[Note: one price for singles and pairs]
At a price per device, a job alone is worth v_i = max_w u_i(w) - price w, and two jobs that share the same devices are
worth v_ij = max_w u_ij(w) - price w.  A matching with the greatest weight v_ij - v_i - v_j then gives the pairs at that
price, and the total number of devices requested tells whether the price was right.  With the pairs found at the right
price, every pair becomes another row of the exact knapsack of singles, and all sizes are chosen again.  The result is
used only if it is worth more than the best allocation without pairs.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from weft.elastic.assignment_problem import best_assignment

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

_MAX_PRICE_STEPS = 16
_PRICE_PRECISION = 1.1
"""Prices within this factor are treated as equal: sizes are chosen exactly afterward."""


def match(singles: FloatArray, first: IntArray, second: IntArray, values: FloatArray) -> list[int]:
    """Of the pairs of ``first`` and ``second``, a matching with (nearly) the greatest weight over singles.

    The assignment relaxation is solved instead of the matching itself (a hundred times faster): its cycles of two are
    pairs, and longer cycles are cut into pairs; an odd cycle loses at most its weakest link.
    """
    gain = values - singles[first] - singles[second]
    useful = np.flatnonzero(gain > 1e-12 * np.abs(values))
    if not len(useful):
        return []
    rows = np.unique(np.concatenate([first[useful], second[useful]]))
    one = np.searchsorted(rows, first[useful])
    other = np.searchsorted(rows, second[useful])
    weight = np.zeros((len(rows), len(rows)))
    number = np.full((len(rows), len(rows)), -1)
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
    """The best pairs of neighbors along a cycle, each member in at most one."""
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
    utility: FloatArray,
    sizes: IntArray,
    capacity: int,
    pairs: tuple[IntArray, IntArray],
    pair_utility: FloatArray,
    pair_sizes: IntArray,
    price: float,
) -> list[int]:
    """The pairs that are worth it at the price at which singles and pairs together just fit ``capacity``.

    ``price`` is that of singles only: pairs need fewer devices than their jobs would separately, so it is rarely
    higher with pairs.
    """
    first, second = pairs
    rows, pair_rows = np.arange(len(utility)), np.arange(len(pair_utility))

    def at(price: float) -> tuple[list[int], int]:
        values = utility - price * sizes
        column = values.argmax(axis=1)
        alone = values[rows, column]
        used = sizes[rows, column]
        pair_values = pair_utility - price * pair_sizes
        pair_column = pair_values.argmax(axis=1)
        chosen = match(alone, first, second, pair_values[pair_rows, pair_column])
        num = int(used.sum()) + int(pair_sizes[pair_column[chosen]].sum())
        return chosen, num - int(used[first[chosen]].sum() + used[second[chosen]].sum())

    chosen, num = at(price)
    if num == capacity or (num < capacity and not price):
        return chosen
    low, high = (0.0, price) if num < capacity else (price, np.inf)
    found = chosen if num < capacity else []
    for _ in range(_MAX_PRICE_STEPS):
        if low > 0 and high < _PRICE_PRECISION * low:
            break
        if high == np.inf:
            # If devices cost nothing without pairs, the first guess is what a pair may gain.
            price = 2 * low or float(np.abs(pair_utility[np.isfinite(pair_utility)]).max())
        else:
            price = low**0.5 * high**0.5 or high / 2
        chosen, num = at(price)
        if num <= capacity:
            high, found = price, chosen
            if num == capacity:
                break
        else:
            low = price
    return found
