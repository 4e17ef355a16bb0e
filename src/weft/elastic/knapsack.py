"""The multiple-choice knapsack of the utility policies: one size per job, a limited number of devices, the best sum.

[Note: exact without the full table]
The textbook recurrence costs jobs x sizes x devices.  Instead, a price per device is found first: at the right price,
the sizes that jobs pick independently (nearly) fill the cluster.  That costs jobs x sizes for each of a handful of
prices.  It also bounds what any other solution can reach, so a size whose own loss at that price exceeds the remaining
gap cannot be part of a better solution.  What is left (a few jobs with two or three sizes each) goes through the
recurrence.  The answer is the same as with the full table.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

Row = tuple[FloatArray, IntArray]
"""The utilities and sizes among which one job may choose."""

_TOLERANCE = 1e-12
_MAX_PRICES = 60
_FIRST_PRICE = 0.25
"""The first price tried, as a share of the average utility per device if every job had its best size."""
_MAX_FACTOR = 1e9
"""Maximum ratio between two consecutive prices."""
_SMALL_TABLE = 14_000
"""Cells of the full table below which finding a price first does not pay off."""


def best_choices(utility: FloatArray, sizes: IntArray, capacity: int) -> IntArray:
    """The column to take in each row, so that the sizes fit ``capacity`` and the total utility is greatest.

    Sizes rise along a row; a row that is shorter than the others is filled up with columns of size 0 that are
    worth no more than its first.  ``utility`` may hold ``-inf`` where a column is not allowed.  The smallest
    allowed sizes must fit together.

    >>> utility = np.array([[0.0, 3.0, 4.0], [0.0, 2.0, 5.0]])
    >>> best_choices(utility, np.array([[0, 1, 2], [0, 1, 2]]), capacity=3).tolist()
    [1, 2]
    """
    first_cell = np.arange(len(utility)) * utility.shape[1]
    choice: IntArray = utility.argmax(axis=1)  # the first of equals, which is the smallest
    if int(np.add.reduce(sizes.take(first_cell + choice))) <= capacity:
        return choice
    num_useful = (choice + 1).tolist()  # no job takes more devices for less utility
    if sum(num_useful) * (capacity + 1) <= _SMALL_TABLE:
        return _small_table(utility, sizes, capacity, choice)
    width = max(num_useful)
    utility, sizes = utility[:, :width].copy(), sizes[:, :width].copy()
    price, bound, choice = _price(utility, sizes, capacity)
    choice = _fill(utility, sizes, capacity, choice)
    reached = utility.take(np.arange(0, utility.size, width) + choice)
    gap = bound - float(np.add.reduce(reached))
    scale = max(1e-300, abs(bound), float(np.abs(reached).max()))
    if gap <= _TOLERANCE * scale:
        return choice
    return _close_gap(utility, sizes, capacity, price, gap + _TOLERANCE * scale, choice)


def device_price(utility: FloatArray, sizes: IntArray, capacity: int) -> float:
    """The price per device at which the rows together (nearly) fill ``capacity``; 0 if all fit at their best."""
    best = utility.argmax(axis=1)
    if int(np.add.reduce(sizes.take(np.arange(0, utility.size, utility.shape[1]) + best))) <= capacity:
        return 0.0
    return _price(utility, sizes, capacity)[0]


def _small_table(utility: FloatArray, sizes: IntArray, capacity: int, last: IntArray) -> IntArray:
    """:func:`_table` over the columns up to ``last`` of each row, for a table so small that calls cost the most.

    All shifted positions are computed at once, and the way back walks plain lists.
    """
    num, width = len(utility), int(last.max()) + 1
    useful = np.arange(width) <= last[:, None]
    utility, sizes = np.where(useful, utility[:, :width], -np.inf), np.where(useful, sizes[:, :width], 0)
    pad = int(sizes.max())
    best = np.zeros((num + 1, pad + capacity + 1))
    best[:, :pad] = -np.inf  # negative totals, where a size is too large
    before = np.arange(pad, pad + capacity + 1) - sizes[:, :, None]
    added = np.repeat(utility, capacity + 1, axis=1).reshape(before.shape)
    largest = np.maximum.reduce
    for reached, after, shifted, gained in zip(best, best[1:, pad:], before, added, strict=False):
        largest(reached[shifted] + gained, axis=0, out=after)
    choice = np.zeros(num, dtype=np.int64)
    left = pad + capacity
    backward = zip(range(num - 1, -1, -1), utility[::-1].tolist(), sizes[::-1].tolist(), strict=True)
    totals = best.tolist()
    for row, row_utility, row_sizes in backward:
        total = totals[row]
        values = [total[left - size] + gained for gained, size in zip(row_utility, row_sizes, strict=True)]
        column = values.index(max(values))  # the first of equals
        if column:
            choice[row] = column
            left -= row_sizes[column]
            if left == pad:  # nothing is left for the other rows
                break
    return choice


def _table(rows: Sequence[Row], capacity: int) -> list[int]:
    """The textbook recurrence, one row of all totals at a time.

    Only the best values are kept.  Which column led to them is recomputed on the way back, for one total per row: that
    is cheaper than recording it for all totals on the way forward.
    """
    pad = max([int(sizes[-1]) for _, sizes in rows])
    width = capacity + 1
    best = np.zeros((len(rows) + 1, pad + width))
    best[:, :pad] = -np.inf  # negative totals, where a size is too large
    row_bytes, cell_bytes = best.strides
    # before[row, size] is best[row] shifted by size: the values before that size is added.
    before: FloatArray = np.ndarray(
        (len(best), pad + 1, width), np.float64, best, pad * cell_bytes, (row_bytes, -cell_bytes, cell_bytes)
    )
    for row, (utility, sizes) in enumerate(rows):
        values = before[row][sizes]
        values += utility[:, None]
        np.maximum.reduce(values, axis=0, out=best[row + 1, pad:])
    choice = [0] * len(rows)
    left = pad + capacity
    for row in range(len(rows) - 1, -1, -1):
        utility, sizes = rows[row]
        values = best[row].take(left - sizes)
        values += utility
        choice[row] = column = int(values.argmax())  # the first of equals
        left -= int(sizes[column])
    return choice


def best_choices_in_groups(
    utility: FloatArray, sizes: IntArray, capacity: int, groups: Sequence[tuple[IntArray, int]]
) -> IntArray:
    """Like :func:`best_choices`; the rows of each (disjoint) group get at most its limit together.

    A group is solved separately for every total up to its limit, and then competes as one row.
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


def _extended(best: FloatArray, utility: FloatArray, sizes: IntArray, columns: IntArray) -> tuple[FloatArray, IntArray]:
    """One step of the recurrence: one more row."""
    updated = np.full(len(best), -np.inf)
    which = np.zeros(len(best), dtype=np.int64)
    for column in columns:
        extra = int(sizes[column])
        if extra < len(best):
            candidate = best[: len(best) - extra] + utility[column]
            better = candidate > updated[extra:]
            updated[extra:][better] = candidate[better]
            which[extra:][better] = column
    return updated, which


def _price(utility: FloatArray, sizes: IntArray, capacity: int) -> tuple[float, float, IntArray]:
    """The price that minimizes the Lagrangian bound; the bound; the choices there that fit.

    The bound is convex and piecewise linear in the price: the next price is where the supporting lines of the
    two that bracket the minimum meet.
    """
    first_cell = np.arange(0, utility.size, utility.shape[1])
    sizes_as_float = sizes.astype(np.float64)

    def at(price: float) -> tuple[float, float, IntArray]:
        values = sizes_as_float * price
        np.subtract(utility, values, out=values)
        choice = values.argmax(axis=1)
        cells = choice + first_cell
        used = int(np.add.reduce(sizes.take(cells)))
        return float(np.add.reduce(values.take(cells))) + price * capacity, float(capacity - used), choice

    # From a first guess outwards, until the minimum lies between two prices.
    smallest = utility.take(first_cell + np.isfinite(utility).argmax(axis=1))
    hoped = float(np.add.reduce(utility.max(axis=1) - smallest))
    high = max(_FIRST_PRICE * hoped / max(1, capacity), 1e-300)
    low, factor = high, 1.5
    low_bound, low_slope, choice = high_bound, high_slope, _ = at(high)
    while low_slope >= 0:  # ends: at price 0, more is requested than there is
        high, high_bound, high_slope = low, low_bound, low_slope
        low = low / factor if factor < _MAX_FACTOR else 0.0
        low_bound, low_slope, found = at(low)
        choice = found if low_slope >= 0 else choice
        factor **= 2
    while high_slope < 0:  # ends: at some price, no job takes more than its smallest size
        low, low_bound, low_slope = high, high_bound, high_slope
        high *= factor
        high_bound, high_slope, choice = at(high)
        factor = min(factor**2, _MAX_FACTOR)
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
    """Use the remaining capacity for the best single upgrades, one at a time."""
    first_cell = np.arange(0, utility.size, utility.shape[1])
    held = sizes.take(first_cell + choice)
    left = capacity - int(np.add.reduce(held))
    while left > 0:
        added = sizes - held[:, None]
        reached = utility.take(first_cell + choice)
        gain = np.where((added > 0) & (added <= left), utility - reached[:, None], 0.0)
        row, column = divmod(int(gain.argmax()), utility.shape[1])
        if gain[row, column] <= 0:
            break
        left -= int(added[row, column])
        choice[row] = column
        held[row] = sizes[row, column]
    return choice


def _close_gap(
    utility: FloatArray, sizes: IntArray, capacity: int, price: float, gap: float, incumbent: IntArray
) -> IntArray:
    """The recurrence over the sizes that could still be part of a better solution than ``incumbent``."""
    values = utility - price * sizes
    alive = values >= values.max(axis=1, keepdims=True) - gap
    rows = np.arange(len(utility))
    alive[:, 1:] &= sizes[:, 1:] > 0
    alive[rows, incumbent] = True
    choice = incumbent.copy()
    room = capacity - int(np.add.reduce(sizes[rows, incumbent]))
    open_rows = np.flatnonzero(np.add.reduce(alive, axis=1) > 1).tolist()
    columns = [alive[row].nonzero()[0] for row in open_rows]
    if not open_rows:
        return choice
    # Counted from the smallest size that is alive, so that the table has as few totals as possible.
    open_table: list[Row] = []
    for row, alive_here in zip(open_rows, columns, strict=True):
        least = int(sizes[row, alive_here[0]])
        room += int(sizes[row, incumbent[row]]) - least
        open_table.append((utility[row].take(alive_here), sizes[row].take(alive_here) - least))
    for row, alive_here, taken in zip(open_rows, columns, _table(open_table, room), strict=True):
        choice[row] = alive_here[taken]
    return choice
