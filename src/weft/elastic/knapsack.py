"""The multiple-choice knapsack under the utility policies: one size per job, so many devices, best sum.

[Note: exact without the full table]
The textbook recurrence costs jobs x sizes x devices.  Instead a price
per device is found first: at the right price each job on its own picks a size, and together they (nearly)
fill the cluster.  That costs jobs x sizes per price tried, and a handful of prices.  It also bounds what
any other solution can reach, so that a size whose own loss at that price exceeds the remaining gap cannot
be part of a better solution.  What survives (a few jobs with two or three sizes each) goes through the
recurrence.  The answer is that of the full table.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

_TOLERANCE = 1e-12
_MAX_PRICES = 60
_SMALL_TABLE = 20_000
"""Cells of the full table below which pricing first does not pay."""


def best_choices(utility: FloatArray, sizes: IntArray, capacity: int) -> IntArray:
    """For each row the column to take, so that the sizes fit ``capacity`` and the summed utility is greatest.

    ``utility`` may hold ``-inf`` where a column is not allowed.  The smallest allowed sizes must fit
    together.

    >>> utility = np.array([[0.0, 3.0, 4.0], [0.0, 2.0, 5.0]])
    >>> best_choices(utility, np.array([[0, 1, 2], [0, 1, 2]]), capacity=3).tolist()
    [1, 2]
    """
    rows = np.arange(len(utility))
    choice: IntArray = utility.argmax(axis=1)  # the first of equals, that is the smallest
    if int(sizes[rows, choice].sum()) <= capacity:
        return choice
    if utility.size * (capacity + 1) <= _SMALL_TABLE:
        return _whole_table(utility, sizes, capacity)
    price, bound, choice = _price(utility, sizes, capacity)
    choice = _fill(utility, sizes, capacity, choice)
    gap = bound - float(utility[rows, choice].sum())
    scale = max(1e-300, abs(bound), float(np.abs(utility[rows, choice]).max()))
    if gap <= _TOLERANCE * scale:
        return choice
    return _close_gap(utility, sizes, capacity, price, gap + _TOLERANCE * scale, choice)


def _whole_table(utility: FloatArray, sizes: IntArray, capacity: int) -> IntArray:
    """The textbook recurrence, one row of all totals at a time; fastest while the table is small."""
    width = capacity + 1
    before = np.arange(width)[:, None] - sizes[:, None, :]
    before[before < 0] = width  # where a size is too large: the cell that holds -inf
    best = np.zeros(width + 1)
    best[width] = -np.inf
    totals = np.arange(width)
    taken = np.empty((len(utility), width), dtype=np.int64)
    for row in range(len(utility)):
        values = best[before[row]]
        values += utility[row]
        taken[row] = column = values.argmax(axis=1)
        best[:width] = values[totals, column]
    choice = np.empty(len(utility), dtype=np.int64)
    left = capacity
    for row in range(len(utility) - 1, -1, -1):
        choice[row] = column = taken[row, left]
        left -= int(sizes[row, column])
    return choice


def best_choices_in_groups(
    utility: FloatArray, sizes: IntArray, capacity: int, groups: Sequence[tuple[IntArray, int]]
) -> IntArray:
    """Like :func:`best_choices`; the rows of each (disjoint) group have no more than its limit together.

    A group is worked out alone for every total up to its limit, and then competes as one row.
    """
    groups = [(rows, min(limit, capacity)) for rows, limit in groups if len(rows)]
    if not groups:
        return best_choices(utility, sizes, capacity)
    grouped = {int(row) for rows, _ in groups for row in rows}
    single = [row for row in range(len(utility)) if row not in grouped]
    tables = [_group_table(utility[rows], sizes[rows], limit) for rows, limit in groups]
    width = max([utility.shape[1], *(limit + 1 for _, limit in groups)])
    wide_utility = np.full((len(single) + len(groups), width), -np.inf)
    wide_sizes = np.zeros((len(single) + len(groups), width), dtype=np.int64)
    wide_utility[: len(single), : utility.shape[1]] = utility[single]
    wide_sizes[: len(single), : utility.shape[1]] = sizes[single]
    for place, (best, _) in enumerate(tables, start=len(single)):
        wide_utility[place, : len(best)] = best
        wide_sizes[place, : len(best)] = np.arange(len(best))
    picked = best_choices(wide_utility, wide_sizes, capacity)
    choice = np.zeros(len(utility), dtype=np.int64)
    choice[single] = picked[: len(single)]
    for (rows, _), (_, taken), total in zip(groups, tables, picked[len(single) :], strict=True):
        left = int(total)
        for row, which in zip(rows[::-1], taken[::-1], strict=True):
            choice[row] = which[left]
            left -= int(sizes[row, choice[row]])
    return choice


def _group_table(utility: FloatArray, sizes: IntArray, limit: int) -> tuple[FloatArray, list[IntArray]]:
    """Best utility with at most 0, 1, ... ``limit`` devices, and per row the column taken at each total."""
    best = np.zeros(limit + 1)
    taken: list[IntArray] = []
    for row_utility, row_sizes in zip(utility, sizes, strict=True):
        best, which = _extended(best, row_utility, row_sizes, np.flatnonzero(row_utility > -np.inf))
        taken.append(which)
    return best, taken


def _extended(
    best: FloatArray, utility: FloatArray, sizes: IntArray, columns: IntArray, base: int = 0
) -> tuple[FloatArray, IntArray]:
    """One step of the recurrence: one more row, sizes counted from ``base``."""
    updated = np.full(len(best), -np.inf)
    which = np.zeros(len(best), dtype=np.int64)
    for column in columns:
        extra = int(sizes[column]) - base
        if extra < len(best):
            candidate = best[: len(best) - extra] + utility[column]
            better = candidate > updated[extra:]
            updated[extra:][better] = candidate[better]
            which[extra:][better] = column
    return updated, which


def _price(utility: FloatArray, sizes: IntArray, capacity: int) -> tuple[float, float, IntArray]:
    """The price that minimises the Lagrangian bound; the bound; the choices there that fit.

    The bound is convex and piecewise linear in the price: the next price is where the supporting lines of the
    two that bracket the minimum meet.
    """
    rows = np.arange(len(utility))

    def at(price: float) -> tuple[float, float, IntArray]:
        values = utility - price * sizes
        choice = values.argmax(axis=1)
        used = int(sizes[rows, choice].sum())
        return float(values[rows, choice].sum()) + price * capacity, float(capacity - used), choice

    low, (low_bound, low_slope, _) = 0.0, at(0.0)
    finite = np.where(np.isfinite(utility), utility, np.nan)
    high = float(np.nanmax(finite) - np.nanmin(finite)) + 1e-300
    high_bound, high_slope, choice = at(high)
    while high_slope < 0:  # utilities of very different scale: the range over all rows is no upper bound
        high *= 4.0
        high_bound, high_slope, choice = at(high)
    for _ in range(_MAX_PRICES):
        meet = (high_bound - low_bound + low_slope * low - high_slope * high) / (low_slope - high_slope)
        if not low < meet < high:
            break
        expected = low_bound + low_slope * (meet - low)
        bound, slope, found = at(meet)
        if slope >= 0:
            high, high_bound, high_slope, choice = meet, bound, slope, found
        else:
            low, low_bound, low_slope = meet, bound, slope
        if bound - expected <= 1e-13 * abs(bound):
            break
    if low_bound < high_bound:
        return low, low_bound, choice
    return high, high_bound, choice


def _fill(utility: FloatArray, sizes: IntArray, capacity: int, choice: IntArray) -> IntArray:
    """Use what is left of the capacity for the best single upgrades, one after the other."""
    rows = np.arange(len(utility))
    choice = choice.copy()
    left = capacity - int(sizes[rows, choice].sum())
    while left > 0:
        added = sizes - sizes[rows, choice][:, None]
        gain = np.where((added > 0) & (added <= left), utility - utility[rows, choice][:, None], 0.0)
        best = int(gain.argmax())
        row, column = divmod(best, utility.shape[1])
        if gain[row, column] <= 0:
            break
        left -= int(added[row, column])
        choice[row] = column
    return choice


def _close_gap(
    utility: FloatArray, sizes: IntArray, capacity: int, price: float, gap: float, incumbent: IntArray
) -> IntArray:
    """The recurrence over the sizes that could still be part of something better than ``incumbent``."""
    rows = np.arange(len(utility))
    values = utility - price * sizes
    loss = values.max(axis=1, keepdims=True) - values
    alive = loss <= gap
    alive[rows, incumbent] = True
    num_alive = alive.sum(axis=1)
    choice = incumbent.copy()
    choice[num_alive == 1] = alive[num_alive == 1].argmax(axis=1)
    open_rows = np.flatnonzero(num_alive > 1)
    fixed = rows[num_alive == 1]
    room = capacity - int(sizes[fixed, choice[fixed]].sum())
    if not len(open_rows):
        return choice
    least = [int(sizes[row][alive[row]].min()) for row in open_rows]
    width = room - sum(least) + 1
    best = np.zeros(width)
    taken: list[IntArray] = []
    for row, base in zip(open_rows, least, strict=True):
        best, which = _extended(best, utility[row], sizes[row], np.flatnonzero(alive[row]), base)
        taken.append(which)
    left = int(best.argmax())
    for row, base, which in zip(open_rows[::-1], least[::-1], taken[::-1], strict=True):
        choice[row] = which[left]
        left -= int(sizes[row, choice[row]]) - base
    return choice
