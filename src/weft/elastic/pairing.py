"""What two jobs gain by sharing devices: the one model that decides, explains and is reviewed.

- :class:`PairBook` predicts every pair of a decision at every size, as arrays; ``matching.py`` picks from them.
- :func:`predicted_gain` and :func:`refusal` put the same prediction into words.
- :func:`review` compares it with the speeds a pair has really reached.

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

MIN_REALISED_GAIN = 0.02
"""A pair that gains less than this is split.  Below ``MIN_GAIN``, or pairs would come and go."""
MAX_PAIR_SIZES = 24
MAX_CANDIDATES = 128
"""At most this many jobs are considered for pairing: the number of pairs grows with the square."""
_MAX_KEPT_CURVES = 2000
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
    """Each way to share, element by element."""
    second_per_s, first_per_s, gain = filler_speeds(*second, *first, handover_s)
    return {
        PairMode.TURNS: turns_speeds(*first, *second, handover_s),
        PairMode.SECOND_FILLS: filler_speeds(*first, *second, handover_s),
        PairMode.FIRST_FILLS: (first_per_s, second_per_s, gain),
    }


def predicted_gain(first: StepTime, second: StepTime, handover_s: float, mode: PairMode | None = None) -> float:
    """Work done per unit of time, where each job alone does 1; by the best mode unless one is given.

    >>> predicted_gain(StepTime(2.0, exposed_s=1.0), StepTime(2.0, exposed_s=1.0), handover_s=0.0)
    2.0
    """
    one, other = ((np.array([step.step_s]), np.array([step.exposed_s])) for step in (first, second))
    speeds = pair_speeds(one, other, handover_s)
    return max(float(gain[0]) for kind, (_, _, gain) in speeds.items() if mode in (None, kind))


def refusal(names: tuple[str, str], first: StepTime, second: StepTime, handover_s: float) -> str | None:
    """Why these two jobs gain too little to share; ``None`` if they gain enough."""
    gain = predicted_gain(first, second, handover_s)
    if gain >= 1 + MIN_GAIN:
        return None
    return (
        f"sharing would do {gain:.2f}x the work of running {names[0]} and {names[1]} one after the other, "
        f"which is less than the {1 + MIN_GAIN:.2f}x required"
    )


@dataclass(frozen=True, slots=True)
class Review:
    """What a pair has gained, and whether it should continue."""

    gain: float
    should_split: bool
    reason: str


def review(
    names: tuple[str, str], alone: tuple[StepTime, StepTime], steps_per_s: tuple[float, float], expected: float
) -> Review:
    """Compare the speeds a pair reached with those of its jobs alone and with the gain that was predicted."""
    gain = sum(speed * step.step_s for speed, step in zip(steps_per_s, alone, strict=True))
    should_split = gain < 1 + MIN_REALISED_GAIN
    measured = f"{names[0]} and {names[1]} do {gain:.2f}x the work of running one after the other"
    verdict = f"{expected:.2f}x was expected{', so they are split' if should_split else ''}"
    return Review(gain, should_split, f"{measured}; {verdict}")


@dataclass(frozen=True, eq=False)
class PairOptions:
    """Candidate pairs by row: their jobs, and both speeds on each size (0 where pairing does not pay)."""

    first: IntArray
    second: IntArray
    modes: tuple[PairMode, ...]
    sizes: IntArray
    first_steps_per_s: FloatArray
    second_steps_per_s: FloatArray


class PairBook:
    """Speeds of pairs of menus, kept from decision to decision."""

    def __init__(self, handover_s: float, cluster: Cluster) -> None:
        self.setting = (handover_s, cluster)
        self.handover_s = handover_s
        self.sizes = pair_sizes(cluster.num_devices, max(cluster.devices_by_node))
        self._curves: dict[Menu, StepTimes] = {}
        self._ways: dict[tuple[Menu, Menu], list[tuple[PairMode, int]]] = {}
        """Ways to share that pay, each with its row in the tables of speeds."""
        self._first: list[FloatArray] = []
        self._second: list[FloatArray] = []
        self._tables: tuple[FloatArray, FloatArray] | None = None

    def options(
        self, menus: Sequence[Menu], candidates: Sequence[int], apart: Set[frozenset[int]] = frozenset()
    ) -> PairOptions | None:
        """The pairs among ``candidates`` (rows of ``menus``) that pay on some size, without those to be kept apart."""
        self._learn({menus[row] for row in candidates})
        first, second, modes, rows = [], [], [], []
        for place, one in enumerate(candidates):
            for other in candidates[place + 1 :]:
                if apart and frozenset((one, other)) in apart:
                    continue
                for mode, row in self._ways[menus[one], menus[other]]:
                    first.append(one)
                    second.append(other)
                    modes.append(mode)
                    rows.append(row)
        if not first:
            return None
        if self._tables is None:
            self._tables = (np.array(self._first), np.array(self._second))
        return PairOptions(
            np.array(first),
            np.array(second),
            tuple(modes),
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
        mine = self._steps_of([one for one, _ in pairs])
        theirs = self._steps_of([other for _, other in pairs])
        self._tables = None
        for key in pairs:
            self._ways[key] = []
        for mode, (one_speed, other_speed, gain) in pair_speeds(mine, theirs, self.handover_s).items():
            pays = gain >= 1 + MIN_GAIN
            one_speed, other_speed = np.where(pays, one_speed, 0.0), np.where(pays, other_speed, 0.0)
            for index in np.flatnonzero(pays.any(axis=1)).tolist():
                self._ways[pairs[index]].append((mode, len(self._first)))
                self._first.append(one_speed[index])
                self._second.append(other_speed[index])

    def _steps_of(self, menus: Sequence[Menu]) -> StepTimes:
        curves = [self._curves[menu] for menu in menus]
        return np.array([step_s for step_s, _ in curves]), np.array([exposed_s for _, exposed_s in curves])


def pair_sizes(num_devices: int, node: int) -> IntArray:
    """Sizes on which pairs are offered: those that pack well, thinned out where there are many."""
    sizes = [size for size in range(1, num_devices + 1) if packs_well(size, node)]
    if len(sizes) > MAX_PAIR_SIZES:
        wanted = np.geomspace(1, num_devices, MAX_PAIR_SIZES)
        sizes = sorted({min(sizes, key=lambda size: abs(np.log(size / want))) for want in wanted})
    return np.array(sizes, dtype=np.int64)
