"""The knapsack of the utility policies for several device kinds: one kind and size per job, with the best sum.

[Note: one price per kind]
With several kinds, the textbook recurrence needs a table over the free devices of all kinds, which is small only for
small clusters.  So each kind gets a price: at given prices every job picks its own best option, and what they pick
bounds any solution from above (a Lagrangian bound).  Prices are lowered to the lowest bound, one kind at a time: for
one kind, with the prices of the others fixed, that is the problem of :mod:`weft.elastic.knapsack`.  A solution is then
improved kind by kind with the exact program of that module, where a job may also leave its kind for this one; its old
devices then count at their price.  Options whose loss at these prices exceeds the gap between solution and bound cannot
be part of a better solution.  If few enough options remain, the recurrence makes the answer exact; otherwise it is
within the gap.  A user's quota that would be exceeded is another limit, with its own price.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from weft.elastic.knapsack import best_choices_in_groups

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

_TOLERANCE = 1e-12
_MAX_ROUNDS = 8
"""Of lowering all prices, and of improving a solution on all kinds."""
_MAX_CELLS = 6_000_000
"""Options x states of the recurrence: more would take longer than a decision should."""
_MAX_STATES = 60_000
_FIRST_PRICE = 0.25
"""The first price tried, as a share of the average utility per device if every job had its best option."""
_NOISES = (1.0, 0.3, 0.1, 0.03, 0.01, 0.003, 0.001)
"""Spread of the noise in the search for prices, relative to what a job gains on average."""
_NUM_STEPS = 4
_NUM_HALVINGS = 4


@dataclass(frozen=True, eq=False)
class KindProblem:
    """Options by job (row) and column.  Column 0 has size 0; every other column belongs to one kind.

    ``-inf`` marks an option that is not allowed.
    """

    utility: FloatArray
    sizes: IntArray
    kinds: IntArray
    """Kind by column; -1 for column 0.  Columns of one kind are adjacent, with increasing sizes."""
    capacity: IntArray
    """Devices by kind."""
    groups: tuple[tuple[IntArray, int], ...] = ()
    """Disjoint sets of rows, each with the maximum number of devices that its rows may have together, of any kind."""


@dataclass(frozen=True, slots=True)
class KindSolution:
    """Which option each job gets, and how far from the best it can be."""

    choice: IntArray
    utility: float
    bound: float
    """No other choice has a greater utility."""


@dataclass(eq=False)
class _Search:
    problem: KindProblem
    rows: IntArray = field(init=False)
    columns: list[IntArray] = field(init=False)
    """For each kind: column 0 and its own columns."""

    def __post_init__(self) -> None:
        one = self.problem
        self.rows = np.arange(len(one.utility))
        self.columns = [np.append(0, np.flatnonzero(one.kinds == kind)) for kind in range(len(one.capacity))]

    def worth(self, choice: IntArray) -> float:
        return float(np.add.reduce(self.problem.utility[self.rows, choice]))

    def used(self, choice: IntArray) -> IntArray:
        """Devices by kind, then by group."""
        one = self.problem
        sizes = one.sizes[self.rows, choice]
        by_kind = np.bincount(one.kinds[choice] + 1, sizes, minlength=len(one.capacity) + 1)[1:]
        by_group = [float(np.add.reduce(sizes[rows])) for rows, _ in one.groups]
        return np.append(by_kind, by_group).astype(np.int64)

    @property
    def limits(self) -> IntArray:
        return np.append(self.problem.capacity, [limit for _, limit in self.problem.groups]).astype(np.int64)

    def fits(self, choice: IntArray) -> bool:
        return bool((self.used(choice) <= self.limits).all())

    def prices_by_option(self, prices: FloatArray) -> FloatArray:
        """What a device costs in each option."""
        one = self.problem
        by_row = np.zeros(len(self.rows))
        for (rows, _), price in zip(one.groups, prices[len(one.capacity) :], strict=True):
            by_row[rows] = price
        return np.append(0.0, prices[one.kinds[1:]])[None, :] + by_row[:, None]

    def values(self, prices: FloatArray) -> FloatArray:
        """Utility of each option minus the price of its devices."""
        values: FloatArray = self.problem.utility - self.prices_by_option(prices) * self.problem.sizes
        return values

    def bound(self, values: FloatArray, prices: FloatArray) -> float:
        return float(np.add.reduce(values.max(axis=1))) + float(prices @ self.limits)


def best_options(problem: KindProblem, start: IntArray) -> KindSolution:
    """The options with the greatest summed utility that fit; ``start`` is one choice that does.

    >>> utility = np.array([[0.0, 3.0, 5.0], [0.0, 2.0, 5.0]])
    >>> one_of_each = KindProblem(utility, np.array([[0, 1, 1], [0, 1, 1]]), np.array([-1, 0, 1]), np.array([1, 1]))
    >>> best_options(one_of_each, start=np.array([0, 0])).choice.tolist()
    [1, 2]
    """
    search = _Search(problem)
    free: IntArray = problem.utility.argmax(axis=1)
    if search.fits(free):
        worth = search.worth(free)
        return KindSolution(free, worth, worth)
    prices, bound = _prices(search)
    values = search.values(prices)
    found = _improved(search, prices, _filled(search, _repaired(search, values, start)))
    reached = search.worth(found)
    scale = max(1e-300, abs(bound), float(np.abs(problem.utility[search.rows, found]).max()))
    if bound - reached <= _TOLERANCE * scale:
        return KindSolution(found, reached, bound)
    exact = _close_gap(search, values, bound - reached + _TOLERANCE * scale, found)
    if exact is None:
        return KindSolution(found, reached, bound)
    best = max(found, exact, key=search.worth)
    return KindSolution(best, search.worth(best), search.worth(best))


def _prices(search: _Search) -> tuple[FloatArray, float]:
    """Prices with a low bound, and the bound.

    The bound is convex in the prices, but has corners.  So jobs first pick options with some noise, which makes it
    smooth; with less and less noise, Newton's method follows the lowest bound to its corner.
    """
    one = search.problem
    gain = np.where(np.isfinite(one.utility), one.utility, -np.inf).max(axis=1)
    smallest = one.utility[search.rows, np.isfinite(one.utility).argmax(axis=1)]
    hoped = float(np.add.reduce(gain - smallest))
    prices = np.full(len(search.limits), _FIRST_PRICE * hoped / max(1, int(one.capacity.sum())))
    best_prices, best = prices, search.bound(search.values(prices), prices)
    for noise in _NOISES:
        spread = noise * hoped / len(search.rows)
        for _ in range(_NUM_STEPS):
            after = _newton_step(search, prices, spread)
            found = search.bound(search.values(after), after)
            if found < best:
                best_prices, best = after, found
            moved = float(np.abs(after - prices).max())
            prices = after
            if moved <= 0.01 * noise * float(prices.max()):
                break
    return best_prices, best


def _newton_step(search: _Search, prices: FloatArray, spread: float) -> FloatArray:
    """One step toward the lowest bound if jobs pick options with noise of this spread."""
    level, slope, curvature = _noisy(search, prices, spread)
    free = (prices > 0) | (slope < 0)
    if not free.any():
        return prices
    inner = curvature[np.ix_(free, free)]
    inner[np.diag_indices_from(inner)] *= 1.0 + 1e-9
    inner[np.diag_indices_from(inner)] += 1e-12 * max(float(np.trace(inner)), 1e-300)
    step = np.zeros(len(prices))
    step[free] = np.linalg.solve(inner, -slope[free])
    # Far from the minimum, the curvature may be almost zero.
    step = np.clip(step, -prices, 3.0 * prices + 1e-300)
    share = 1.0
    for _ in range(_NUM_HALVINGS):
        after = np.maximum(prices + share * step, 0.0)
        if _noisy(search, after, spread)[0] <= level:
            return after
        share /= 4.0
    return prices


def _noisy(search: _Search, prices: FloatArray, spread: float) -> tuple[float, FloatArray, FloatArray]:
    """The bound with noise, and its first and second derivatives by the prices."""
    one = search.problem
    num_kinds = len(one.capacity)
    values = search.values(prices)
    top = values.max(axis=1)
    odds = np.exp((values - top[:, None]) / spread)
    total = np.add.reduce(odds, axis=1)
    odds /= total[:, None]
    level = float(np.add.reduce(top + spread * np.log(total)) + prices @ search.limits)
    used = odds * one.sizes
    square = used * one.sizes
    means = np.stack([np.add.reduce(used[:, columns[1:]], axis=1) for columns in search.columns], axis=1)
    squares = np.stack([np.add.reduce(square[:, columns[1:]], axis=1) for columns in search.columns], axis=1)
    moments = np.zeros((len(prices), len(prices)))
    moments[:num_kinds, :num_kinds] = np.diag(np.add.reduce(squares, axis=0))
    if one.groups:
        in_groups = np.zeros((len(values), len(one.groups)))
        for number, (rows, _) in enumerate(one.groups):
            in_groups[rows, number] = np.add.reduce(means[rows], axis=1)
            both = np.add.reduce(squares[rows], axis=0)
            moments[num_kinds + number, :num_kinds] = moments[:num_kinds, num_kinds + number] = both
            moments[num_kinds + number, num_kinds + number] = both.sum()
        means = np.concatenate([means, in_groups], axis=1)
    slope = search.limits - np.add.reduce(means, axis=0)
    return level, slope, (moments - means.T @ means) / spread


def _repaired(search: _Search, values: FloatArray, start: IntArray) -> IntArray:
    """What the jobs would pick at these prices, as far as it fits; those that gain the most come first."""
    one = search.problem
    choice = start.copy()
    room = search.limits - search.used(choice)
    group_of = np.full(len(search.rows), -1)
    for number, (rows, _) in enumerate(one.groups):
        group_of[rows] = len(one.capacity) + number
    gain = values.max(axis=1) - values[search.rows, start]
    gain[np.isnan(gain)] = 0.0
    for row in np.argsort(-gain, kind="stable").tolist():
        held, size = int(choice[row]), int(one.sizes[row, choice[row]])
        _move(one, room, group_of[row], held, -size)
        for column in np.argsort(-values[row], kind="stable").tolist():
            wanted = int(one.sizes[row, column])
            if column == held or _has_room(one, room, group_of[row], column, wanted):
                if values[row, column] > values[row, held]:
                    choice[row], size = column, wanted
                break
        _move(one, room, group_of[row], int(choice[row]), size)
    return choice


def _has_room(one: KindProblem, room: IntArray, group: int, column: int, size: int) -> bool:
    return not size or (size <= room[one.kinds[column]] and (group < 0 or size <= room[group]))


def _move(one: KindProblem, room: IntArray, group: int, column: int, size: int) -> None:
    if size:
        room[one.kinds[column]] -= size
        if group >= 0:
            room[group] -= size


def _filled(search: _Search, choice: IntArray) -> IntArray:
    """Use what is left for the best single changes, one at a time."""
    one, limits = search.problem, search.limits
    choice = choice.copy()
    num_kinds = len(one.capacity)
    for _ in range(2 * len(search.rows)):
        left = limits - search.used(choice)
        held = one.sizes[search.rows, choice]
        same = one.kinds[None, :] == one.kinds[choice][:, None]
        fits = one.sizes - np.where(same, held[:, None], 0) <= np.append(0, left[one.kinds[1:]])[None, :]
        for (rows, _), most in zip(one.groups, left[num_kinds:], strict=True):
            fits[rows] &= one.sizes[rows] - held[rows, None] <= most
        gain = np.where(fits, one.utility - one.utility[search.rows, choice][:, None], 0.0)
        row, column = divmod(int(gain.argmax()), gain.shape[1])
        if not gain[row, column] > 0:
            break
        choice[row] = column
    return choice


def _improved(search: _Search, prices: FloatArray, choice: IntArray) -> IntArray:
    """Solve one kind at a time exactly, until none improves; a job may leave another kind for this one."""
    one = search.problem
    best, best_worth = choice, search.worth(choice)
    for _ in range(_MAX_ROUNDS):
        before = best_worth
        for kind, columns in enumerate(search.columns):
            stays = one.kinds[best] != kind
            utility, sizes = one.utility[:, columns].copy(), one.sizes[:, columns]
            elsewhere = np.where(stays, one.sizes[search.rows, best], 0)
            for freed in (prices, np.zeros_like(prices)):
                # What a job on another kind frees when it leaves is worth the price there, or nothing at all.
                utility[stays, 0] = search.values(freed)[search.rows, best][stays]
                groups = [(rows, most - int(elsewhere[rows].sum())) for rows, most in one.groups]
                picked = best_choices_in_groups(utility, sizes, int(one.capacity[kind]), groups)
                candidate = np.where((picked == 0) & stays, best, columns[picked])
                candidate = _filled(search, candidate) if search.fits(candidate) else best
                worth = search.worth(candidate)
                if worth > best_worth:
                    best, best_worth = candidate, worth
                    stays = one.kinds[best] != kind
                    utility = one.utility[:, columns].copy()
                    elsewhere = np.where(stays, one.sizes[search.rows, best], 0)
        if best_worth <= before:
            break
    return best


def _close_gap(search: _Search, values: FloatArray, gap: float, incumbent: IntArray) -> IntArray | None:
    """The recurrence over the options that could still be part of a better solution; None if there are too many."""
    one = search.problem
    alive = values >= values.max(axis=1, keepdims=True) - gap
    alive[:, 1:] &= one.sizes[:, 1:] > 0
    alive &= np.isfinite(one.utility)
    alive[search.rows, incumbent] = True
    open_rows = np.flatnonzero(np.add.reduce(alive, axis=1) > 1)
    options = [np.flatnonzero(alive[row]) for row in open_rows]
    fixed = incumbent.copy()
    fixed[open_rows] = 0
    room = search.limits - search.used(fixed)
    # No limit needs to be larger than what all options together could use.
    most = np.zeros(len(room), dtype=np.int64)
    group_of = {int(row): number for number, (rows, _) in enumerate(one.groups) for row in rows}
    axes: list[list[list[tuple[int, int]]]] = []
    for row, columns in zip(open_rows.tolist(), options, strict=True):
        uses = [_uses(one, row, int(column), group_of) for column in columns]
        axes.append(uses)
        for axis in range(len(room)):
            most[axis] += max([size for use in uses for at, size in use if at == axis], default=0)
    shape = tuple((np.minimum(room, most) + 1).tolist())
    num_states = int(np.prod(np.array(shape, dtype=np.float64)))
    if num_states > _MAX_STATES or num_states * sum(map(len, options)) > _MAX_CELLS:
        return None
    utilities = [one.utility[row, columns] for row, columns in zip(open_rows, options, strict=True)]
    taken = _table(utilities, axes, shape)
    choice = incumbent.copy()
    for row, columns, option in zip(open_rows.tolist(), options, taken, strict=True):
        choice[row] = columns[option]
    return choice


def _uses(one: KindProblem, row: int, column: int, group_of: dict[int, int]) -> list[tuple[int, int]]:
    """Which limits the option counts against, and how much."""
    size = int(one.sizes[row, column])
    if not size:
        return []
    uses = [(int(one.kinds[column]), size)]
    if row in group_of:
        uses.append((len(one.capacity) + group_of[row], size))
    return uses


def _table(
    utilities: Sequence[FloatArray], axes: Sequence[Sequence[Sequence[tuple[int, int]]]], shape: tuple[int, ...]
) -> list[int]:
    """The textbook recurrence over all limits at once; the options by row."""
    best = [np.zeros(shape)]
    for utility, uses in zip(utilities, axes, strict=True):
        after = np.full(shape, -np.inf)
        for value, use in zip(utility.tolist(), uses, strict=True):
            to, source = [slice(None)] * len(shape), [slice(None)] * len(shape)
            for axis, size in use:
                to[axis], source[axis] = slice(size, None), slice(0, max(shape[axis] - size, 0))
            np.maximum(after[tuple(to)], best[-1][tuple(source)] + value, out=after[tuple(to)])
        best.append(after)
    at = [length - 1 for length in shape]
    choice = [0] * len(utilities)
    for row in range(len(utilities) - 1, -1, -1):
        found = -np.inf
        for option, (value, use) in enumerate(zip(utilities[row].tolist(), axes[row], strict=True)):
            before = list(at)
            for axis, size in use:
                before[axis] -= size
            if min(before) >= 0 and best[row][tuple(before)] + value > found:
                found, choice[row], kept = best[row][tuple(before)] + value, option, before
        at = kept
    return choice
