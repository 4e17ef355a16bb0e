"""What two jobs gain by sharing devices: the one model that decides, explains and is reviewed.

- :class:`PairBook` predicts every pair of a decision at every size, as arrays; ``matching.py`` picks from them.
- :func:`predicted_gain` and :func:`refusal` put the same prediction into words.
- :func:`review` compares it with the measured speeds of a pair.

The speeds themselves come from :mod:`weft.perf.crossover`, which the simulated jobs follow too.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence, Set
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from weft.core.cluster import Cluster
from weft.core.speed import StepTime
from weft.elastic.menu import Menu, packs_well
from weft.perf.crossover import MIN_GAIN, filler_speeds, turns_speeds

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

MIN_REALIZED_GAIN = 0.02
"""A pair that gains less than this is split.  Lower than ``MIN_GAIN``: otherwise pairs would often form and split."""
MAX_PAIR_SIZES = 24
MAX_CANDIDATES = 128
"""At most this many jobs are considered for pairing: the number of pairs grows with the square."""
_MIN_ALIKE = 2
"""Jobs per menu from which looking at menus first pays off."""
_MAX_KEPT_MENUS = 2 * MAX_CANDIDATES
"""A new menu is compared with all kept ones: keeping those of ended jobs would slow down every decision."""
_LEARNED_AT_ONCE = 4096


class PairMode(enum.Enum):
    """How the two jobs of a pair share their devices."""

    TURNS = enum.auto()
    FIRST_FILLS = enum.auto()
    """The second job keeps its speed, the first runs in its gaps."""
    SECOND_FILLS = enum.auto()
    """The first job keeps its speed, the second runs in its gaps."""

    @classmethod
    def of(cls, *, first_fills: bool, second_fills: bool) -> PairMode:
        return cls.FIRST_FILLS if first_fills else cls.SECOND_FILLS if second_fills else cls.TURNS


StepTimes = tuple[FloatArray, FloatArray]
"""Step times and exposed times."""
PairSpeeds = tuple[FloatArray, FloatArray, FloatArray]
"""Steps per second of the first and the second job, and the gain over running one after the other."""


def pair_speeds(first: StepTimes, second: StepTimes, handover_s: float) -> dict[PairMode, PairSpeeds]:
    """All modes of sharing, element by element."""
    second_per_s, first_per_s, gain = filler_speeds(*second, *first, handover_s)
    return {
        PairMode.TURNS: turns_speeds(*first, *second, handover_s),
        PairMode.SECOND_FILLS: filler_speeds(*first, *second, handover_s),
        PairMode.FIRST_FILLS: (first_per_s, second_per_s, gain),
    }


def predicted_gain(first: StepTime, second: StepTime, handover_s: float, mode: PairMode | None = None) -> float:
    """Work done per unit of time, where each job alone does 1; by the best mode unless one is given.

    >>> round(predicted_gain(StepTime(2.0, exposed_s=1.0), StepTime(2.0, exposed_s=1.0), handover_s=0.0), 2)
    1.74
    """
    one, other = ((np.array([step.step_s]), np.array([step.exposed_s])) for step in (first, second))
    speeds = pair_speeds(one, other, handover_s)
    return max(float(gain[0]) for kind, (_, _, gain) in speeds.items() if mode in (None, kind))


def refusal(partner: str, first: StepTime, second: StepTime, handover_s: float) -> str | None:
    """Why a job gains too little with this partner; ``None`` if it gains enough."""
    gain = predicted_gain(first, second, handover_s)
    if gain >= 1 + MIN_GAIN:
        return None
    return (
        f"with {partner} it would do {gain:.2f}x the work of running one after the other, "
        f"less than the {1 + MIN_GAIN:.2f}x required"
    )


@dataclass(frozen=True, slots=True)
class Review:
    """What a pair has gained, and whether it should continue."""

    gain: float
    should_split: bool
    reason: str


def review(alone: tuple[StepTime, StepTime], steps_per_s: tuple[float, float], expected: float) -> Review:
    """Compare the speeds a pair reached with those of its jobs alone and with the gain that was predicted."""
    gain = sum(speed * step.step_s for speed, step in zip(steps_per_s, alone, strict=True))
    should_split = gain < 1 + MIN_REALIZED_GAIN
    measured = f"together they did {gain:.2f}x the work of running one after the other"
    return Review(gain, should_split, f"{measured}, and {expected:.2f}x was expected")


@dataclass(frozen=True, eq=False)
class PairOptions:
    """Ways to share, one per row: the two jobs, and their speeds at each size (0 where sharing does not pay off).

    The ways of one pair of jobs are next to each other; ``starts`` says where each pair begins.
    """

    first: IntArray
    second: IntArray
    modes: IntArray
    """Places in :data:`PAIR_MODES`."""
    starts: IntArray
    sizes: IntArray
    first_steps_per_s: FloatArray
    second_steps_per_s: FloatArray


@dataclass(frozen=True, eq=False)
class PairWays:
    """Ways in which jobs of two menus can share, without saying which jobs: far fewer than pairs of jobs.

    One row per way, side of the pair, and job that could be on that side.  All first sides come before all second
    sides, in the same order of ways; ``starts`` says where each side of a way begins.
    """

    jobs: IntArray
    starts: IntArray
    steps_per_s: FloatArray
    """At each size; 0 where sharing does not pay off."""


PAIR_MODES = tuple(PairMode)


class PairBook:
    """Speeds of pairs of menus, kept from decision to decision."""

    def __init__(self, handover_s: float, cluster: Cluster) -> None:
        self.setting = (handover_s, cluster)
        self.handover_s = handover_s
        self.sizes = pair_sizes(cluster.num_devices, max(cluster.devices_by_node))
        nothing: FloatArray = np.empty((0, len(self.sizes)))
        self._number: dict[Menu, int] = {}
        """The place of each menu in ``_step_s``, ``_exposed_s`` and ``_rows``."""
        self._step_s = self._exposed_s = nothing
        """Step times and exposed times by menu and size; NaN where the menu does not have the size."""
        self._rows: IntArray = np.empty((0, 0, len(PAIR_MODES)), dtype=np.int64)
        """By two menus and the way they share: its row in the tables of speeds, or -1 if it does not pay off."""
        self._first = self._second = nothing

    def options(
        self, menus: Sequence[Menu], candidates: Sequence[int], apart: Set[frozenset[int]] = frozenset()
    ) -> PairOptions | None:
        """The pairs among ``candidates`` (rows of ``menus``) that pay off at some size, except those in ``apart``."""
        if len(candidates) < 2:
            return None
        self._learn({menus[row] for row in candidates})
        numbers = np.array([self._number[menus[row]] for row in candidates])
        one, other = np.triu_indices(len(candidates), 1)
        rows = self._rows[numbers[one], numbers[other]]
        if apart:
            place = {row: index for index, row in enumerate(candidates)}
            kept_apart = np.zeros((len(candidates), len(candidates)), dtype=bool)
            for couple in apart:
                places = sorted(place[row] for row in couple if row in place)
                if len(places) == 2:
                    kept_apart[places[0], places[1]] = True
            rows[kept_apart[one, other]] = -1
        pair, modes = np.nonzero(rows >= 0)
        if not len(pair):
            return None
        chosen = rows[pair, modes]
        at = np.array(candidates)
        return PairOptions(
            at[one[pair]],
            at[other[pair]],
            modes,
            np.flatnonzero(np.diff(pair, prepend=-1)),
            self.sizes,
            self._first[chosen],
            self._second[chosen],
        )

    def ways(self, menus: Sequence[Menu]) -> PairWays | None:
        """In which ways two of ``menus`` can share at all; None if in no way, or if hardly any menus are alike."""
        distinct = set(menus)
        if _MIN_ALIKE * len(distinct) > len(menus):
            return None
        self._learn(distinct)
        numbers = np.array([self._number[menu] for menu in menus])
        num_jobs = np.bincount(numbers)
        present = np.flatnonzero(num_jobs)
        rows = self._rows[present[:, None], present]
        one, other, modes = np.nonzero(rows >= 0)
        # Below the diagonal are the same pairs with the two jobs swapped; two that are alike are still two jobs.
        here = np.flatnonzero((one < other) | ((one == other) & (num_jobs[present[one]] > 1)))
        if not len(here):
            return None
        one, other, modes = one[here], other[here], modes[here]
        chosen = rows[one, other, modes]
        kinds = present[np.concatenate([one, other])]
        speeds = np.concatenate([self._first[chosen], self._second[chosen]])
        side, job = np.nonzero(kinds[:, None] == numbers)
        num = num_jobs[kinds]
        return PairWays(job, num.cumsum() - num, speeds[side])

    def _learn(self, menus: set[Menu]) -> None:
        new = [menu for menu in menus if menu not in self._number]
        if not new:
            return
        if len(self._number) + len(new) > _MAX_KEPT_MENUS:
            self._number.clear()
            self._step_s, self._exposed_s = self._step_s[:0], self._exposed_s[:0]
            self._first, self._second = self._first[:0], self._second[:0]
            self._rows = self._rows[:0, :0]
            new = list(menus)
        num_before, num = len(self._number), len(self._number) + len(new)
        step_s, exposed_s = np.full((2, len(new), len(self.sizes)), np.nan)
        for place, menu in enumerate(new):
            self._number[menu] = num_before + place
            column = {size: column for column, size in enumerate(menu.sizes)}
            for at, size in enumerate(self.sizes.tolist()):
                if size in column:
                    step_s[place, at] = menu.step_s[column[size]]
                    exposed_s[place, at] = menu.exposed_s[column[size]]
        self._step_s = np.concatenate([self._step_s, step_s])
        self._exposed_s = np.concatenate([self._exposed_s, exposed_s])
        rows = np.full((num, num, len(PAIR_MODES)), -1, dtype=np.int64)
        rows[:num_before, :num_before] = self._rows
        self._rows = rows
        unknown = np.ones((num, num), dtype=bool)
        unknown[:num_before, :num_before] = False
        one, other = np.nonzero(unknown)
        for start in range(0, len(one), _LEARNED_AT_ONCE):
            self._learn_pairs(one[start : start + _LEARNED_AT_ONCE], other[start : start + _LEARNED_AT_ONCE])

    def _learn_pairs(self, one: IntArray, other: IntArray) -> None:
        mine, theirs = (self._step_s[one], self._exposed_s[one]), (self._step_s[other], self._exposed_s[other])
        for mode, (one_speed, other_speed, gain) in pair_speeds(mine, theirs, self.handover_s).items():
            pays = gain >= 1 + MIN_GAIN
            some = np.flatnonzero(pays.any(axis=1))
            self._rows[one[some], other[some], PAIR_MODES.index(mode)] = len(self._first) + np.arange(len(some))
            self._first = np.concatenate([self._first, np.where(pays, one_speed, 0.0)[some]])
            self._second = np.concatenate([self._second, np.where(pays, other_speed, 0.0)[some]])


def pair_sizes(num_devices: int, node: int) -> IntArray:
    """Sizes at which pairs are offered: those that pack well, and only some of them if there are many."""
    sizes = [size for size in range(1, num_devices + 1) if packs_well(size, node)]
    if len(sizes) > MAX_PAIR_SIZES:
        wanted = np.geomspace(1, num_devices, MAX_PAIR_SIZES)
        sizes = sorted({min(sizes, key=lambda size: abs(np.log(size / want))) for want in wanted})
    return np.array(sizes, dtype=np.int64)
