"""A search over a few real knobs by noisy measurements, one trial at a time: ask, measure, tell.

>>> search = Search(bounds=((-2.0, 2.0),), max_trials=12, bayesian=False)
>>> while not search.finished:
...     x = search.ask()
...     search.tell(x, seconds=1.0 + (x[0] - 1.0) ** 2)
>>> search.best()
(1.0,)
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from functools import partial
from statistics import fmean
from typing import Any, Protocol

from weft.errors import UsageError

Point = tuple[float, ...]

# Trials kept back for measuring the winner and the starting point once more.
NUM_CONFIRMATIONS = 2


class Proposals(Protocol):
    """Where to look next."""

    def propose(self) -> Point: ...

    def observe(self, x: Point, seconds: float) -> None: ...


class Search:
    """Find the knobs with the shortest time in at most ``max_trials`` measurements, starting from zero.

    Zero (the model's plan) is measured first, then points halfway out along each axis, then what Bayesian
    optimisation proposes; without that package a compass search takes its place.  After ``patience``
    proposals without a gain of ``min_gain`` the winner and zero are measured once more, since the best of
    many noisy values is a lucky one.  Then ``finished`` is true, and ``ask`` and ``best`` name the point
    to stay with.  Equal measurements lead to equal questions on every run.
    """

    def __init__(
        self,
        bounds: Sequence[tuple[float, float]] = ((-2.0, 2.0), (-1.0, 1.0)),
        *,
        max_trials: int = 20,
        patience: int = 7,
        min_gain: float = 0.005,
        seed: int = 0,
        bayesian: bool | None = None,
    ) -> None:
        if not bounds or any(not low <= 0 <= high or low == high for low, high in bounds):
            raise UsageError(f"the search bounds {tuple(bounds)} do not hold 0: expected low <= 0 <= high")
        if max_trials < 1:
            raise UsageError(f"a search of {max_trials} trials: expected 1 or more")
        self.origin: Point = (0.0,) * len(bounds)
        self.max_trials, self.patience, self.min_gain = max_trials, patience, min_gain
        self.num_trials = 0
        self._measured: dict[Point, list[float]] = {}
        self._proposals = _proposals(bounds, seed, bayesian)
        self._opening = [self.origin]
        for axis, ends in enumerate(bounds):
            halfway = [end / 2 for end in ends if end != 0]
            self._opening += [tuple(value if i == axis else 0.0 for i in range(len(bounds))) for value in halfway]
        self._asked: Point | None = None
        self._since_gain = 0
        self._confirming: list[Point] | None = None

    @property
    def finished(self) -> bool:
        return self.num_trials >= self.max_trials or self._confirming == []

    def ask(self) -> Point:
        """The point to measure now; the same one until it is told, and the best one when finished."""
        if self.finished:
            return self.best()
        if self._asked is None:
            if self._confirming:
                self._asked = self._confirming[0]
            elif self.num_trials < len(self._opening):
                self._asked = self._opening[self.num_trials]
            else:
                self._asked = self._proposals.propose()
        return self._asked

    def tell(self, x: Sequence[float], seconds: float) -> None:
        """``x`` took ``seconds``."""
        if not (math.isfinite(seconds) and seconds > 0):
            raise UsageError(f"a trial took {seconds} s: expected a positive, finite time")
        if self.finished:
            return
        point = tuple(float(value) for value in x)
        best_s = min(map(fmean, self._measured.values()), default=math.inf)
        self._measured.setdefault(point, []).append(seconds)
        self._proposals.observe(point, seconds)
        self.num_trials += 1
        self._asked = None
        if self._confirming is not None:
            self._confirming = [other for other in self._confirming if other != point]
            return
        self._since_gain = 0 if seconds < best_s * (1 - self.min_gain) else self._since_gain + 1
        proposed = self.num_trials - len(self._opening)
        stalled = self._since_gain >= self.patience and proposed >= self.patience
        if stalled or self.num_trials >= self.max_trials - NUM_CONFIRMATIONS:
            ranked = sorted(self._measured, key=lambda other: fmean(self._measured[other]))
            rivals = [ranked[0], self.origin] if ranked[0] != self.origin else ranked[:2]
            self._confirming = [rival for rival in rivals if rival in self._measured]

    def best(self) -> Point:
        """The point with the shortest mean time among those measured most often; zero before any."""
        if not self._measured:
            return self.origin
        most = max(map(len, self._measured.values()))
        often = [point for point, times in self._measured.items() if len(times) == most]
        return min(often, key=lambda point: fmean(self._measured[point]))

    def best_s(self) -> float:
        """The mean time measured at ``best()``; infinite before any."""
        return fmean(self._measured.get(self.best(), [math.inf]))


def _proposals(bounds: Sequence[tuple[float, float]], seed: int, bayesian: bool | None) -> Proposals:
    if bayesian is False:
        return CompassProposals(bounds)
    try:
        return BayesianProposals(bounds, seed)
    except ImportError:
        if bayesian:
            raise
        return CompassProposals(bounds)


class BayesianProposals:
    """Expected improvement on a Gaussian process; knobs are scaled to 0..1 and times to the first one."""

    def __init__(self, bounds: Sequence[tuple[float, float]], seed: int) -> None:
        from bayes_opt import (
            BayesianOptimization,
            acquisition,
        )  # loads scipy and scikit-learn: only when tuning

        self._bounds = tuple(bounds)
        self._first_s: float | None = None
        self._seen: set[Point] = set()
        improvement: Any = acquisition.ExpectedImprovement(xi=0.002)
        # Training waits for the proposal, and two knobs need no finer look than this.
        improvement.suggest = partial(improvement.suggest, n_random=1000, n_smart=2)
        self._optimizer: Any = BayesianOptimization(
            f=None,
            pbounds={f"x{axis}": (0.0, 1.0) for axis in range(len(self._bounds))},
            acquisition_function=improvement,
            random_state=seed,
            verbose=0,
            allow_duplicate_points=True,
        )
        # Measured times scatter by a percent or two where plans differ by ten: the curve need not touch them.
        self._optimizer.set_gp_params(alpha=0.02, n_restarts_optimizer=2)

    def propose(self) -> Point:
        with warnings.catch_warnings():
            # A length scale at its limit is no trouble: the curve is then flat, and the next trial bends it.
            warnings.simplefilter("ignore")
            unit = self._optimizer.suggest()
        return tuple(low + float(unit[f"x{axis}"]) * (high - low) for axis, (low, high) in enumerate(self._bounds))

    def observe(self, x: Point, seconds: float) -> None:
        if self._first_s is None:
            self._first_s = seconds
        if x in self._seen:
            return  # a confirmation comes after the last proposal, and the package would print about it
        self._seen.add(x)
        unit = {
            f"x{axis}": min(1.0, max(0.0, (value - low) / (high - low)))
            for axis, (value, (low, high)) in enumerate(zip(x, self._bounds, strict=True))
        }
        self._optimizer.register(params=unit, target=-seconds / self._first_s)


class CompassProposals:
    """Step along each axis both ways; keep what helps; halve the step when nothing does."""

    def __init__(self, bounds: Sequence[tuple[float, float]]) -> None:
        self._bounds = tuple(bounds)
        self._centre: Point = (0.0,) * len(self._bounds)
        self._centre_s = math.inf
        self._share = 0.25
        self._round: Iterator[Point] = iter(())
        self._seen: set[Point] = set()

    def propose(self) -> Point:
        while True:
            for point in self._round:
                if point not in self._seen:
                    return point
            self._round = iter(self._neighbours())
            self._share /= 2

    def observe(self, x: Point, seconds: float) -> None:
        self._seen.add(x)
        if seconds < self._centre_s:
            self._centre, self._centre_s = x, seconds
            self._round = iter(self._neighbours())

    def _neighbours(self) -> list[Point]:
        points = []
        for axis, (low, high) in enumerate(self._bounds):
            for sign in (1, -1):
                value = self._centre[axis] + sign * self._share * (high - low)
                moved = min(high, max(low, value))
                points.append((*self._centre[:axis], moved, *self._centre[axis + 1 :]))
        return points
