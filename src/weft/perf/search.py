"""A search over a few knobs with noisy measurements, one trial at a time: ask, measure, tell.

>>> search = Search(bounds=((-2.0, 2.0),), max_trials=12)
>>> while not search.finished:
...     x = search.ask()
...     search.tell(x, 1.0 + (x[0] - 1.0) ** 2)
>>> search.best()
(1.0,)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median, quantiles

from weft.errors import UsageError
from weft.perf.gaussian import Point, Proposals

_MIN_GAIN = 0.005


class Search:
    """Find the knobs with the shortest time in at most ``max_trials`` trials of one or more steps; deterministic.

    Zero (the model's plan) is measured first, then points halfway out along each axis, then what Bayesian optimization
    proposes (weft.perf.gaussian).  After ``patience`` proposals without a gain of half a percent, the best
    ``num_finalists`` points, always including zero, are measured ``num_final_rounds`` more times in turn, because the
    best of many noisy values is partly luck.  Then ``finished`` is true, and ``ask`` and ``best`` return the point to
    keep.

    [Note: late steps]  On a shared machine, one step in five is late by more than good plans differ, and none is early.
    So a trial counts with its shortest step, which is enough to find candidates, and a finalist with the
    lower third of all its steps, which tells plans apart even if half of the steps are late.
    """

    def __init__(
        self,
        bounds: Sequence[tuple[float, float]] = ((-2.0, 2.0), (-1.0, 1.0)),
        *,
        max_trials: int = 20,
        patience: int = 7,
        num_finalists: int = 2,
        num_final_rounds: int = 1,
    ) -> None:
        if not bounds or any(not low <= 0 <= high or low == high for low, high in bounds):
            raise UsageError(f"the search bounds {tuple(bounds)} do not contain 0: expected low <= 0 <= high")
        if max_trials < 1:
            raise UsageError(f"a search of {max_trials} trials: expected 1 or more")
        self.origin: Point = (0.0,) * len(bounds)
        self.max_trials, self.patience = max_trials, patience
        self.num_finalists, self.num_final_rounds = num_finalists, num_final_rounds
        self.num_trials = 0
        self._measured: dict[Point, list[float]] = {}
        self._proposals = Proposals(bounds)
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
        """The point to measure now; the same one until ``tell``, and the best one when finished."""
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

    def tell(self, x: Sequence[float], *steps_s: float) -> None:
        """The steps of one trial; the same number of them in every trial."""
        for step_s in steps_s:
            if not (math.isfinite(step_s) and step_s > 0):
                raise UsageError(f"a step of a trial took {step_s} s: expected a positive, finite time")
        if self.finished:
            return
        point = tuple(float(value) for value in x)
        seconds = min(steps_s)
        best_s = min(map(min, self._measured.values()), default=math.inf)
        self._measured.setdefault(point, []).extend(steps_s)
        self._proposals.observe(point, seconds)
        self.num_trials += 1
        self._asked = None
        if self._confirming is not None:
            if point in self._confirming:
                self._confirming.remove(point)
            return
        self._since_gain = 0 if seconds < best_s * (1 - _MIN_GAIN) else self._since_gain + 1
        proposed = self.num_trials - len(self._opening)
        stalled = self._since_gain >= self.patience and proposed >= self.patience
        if stalled or self.num_trials >= self.max_trials - self.num_finalists * self.num_final_rounds:
            self._confirming = self._finalists() * self.num_final_rounds

    def _finalists(self) -> list[Point]:
        others = [point for point in self._measured if point != self.origin]
        others.sort(key=lambda point: min(self._measured[point]))
        finalists = [*others[: self.num_finalists - 1], self.origin]
        return finalists if self.origin in self._measured else finalists[:-1]

    def best(self) -> Point:
        """The fastest point among those measured most often; zero before any."""
        if not self._measured:
            return self.origin
        most = max(map(len, self._measured.values()))
        often = [point for point, times in self._measured.items() if len(times) == most]
        return min(often, key=lambda point: _typical(self._measured[point]))


def _typical(steps_s: Sequence[float]) -> float:
    """How long a step takes when nothing disturbs it; see [Note: late steps]."""
    return quantiles(steps_s, n=3, method="inclusive")[0] if len(steps_s) > 1 else steps_s[0]


class Duel:
    """Finds the faster of two alternatives; each is measured ``num_rounds`` times, in turn.  With 0 rounds, the first.

    >>> duel = Duel(num_rounds=2)
    >>> while not duel.finished:
    ...     duel.tell(seconds=1.0 if duel.ask() else 1.1)
    >>> duel.ask()
    True
    """

    def __init__(self, num_rounds: int) -> None:
        self._num_trials = 2 * num_rounds
        self._seconds: list[float] = []

    @property
    def finished(self) -> bool:
        return len(self._seconds) >= self._num_trials

    def ask(self) -> bool:
        """Whether to use the first alternative now; when finished, whether it is the faster one."""
        if self.finished:
            return not self._seconds or median(self._seconds[::2]) <= median(self._seconds[1::2])
        return len(self._seconds) % 2 == 0

    def tell(self, seconds: float) -> None:
        if not self.finished:
            self._seconds.append(seconds)
