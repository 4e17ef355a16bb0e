"""How much work a job has left if its owner did not say: learned from finished jobs, else from the job itself.

Work is counted in seconds on the job's smallest size, so that jobs of different scripts can be compared.

[Note: what a length is worth to a policy]  A policy ranks jobs by remaining work.  For a job of unknown length the
right stand-in is not the mean: of 100 jobs, 99 of a minute and one of a week, the mean says hours, but the next minute
ends the job almost surely.  The Gittins index asks for which amount of further work the chance to finish per unit of
work is best; its inverse is used as the remaining work.  For lengths without a scale (a Pareto tail) it is
proportional to the work done so far, which is the least-attained-service rule: what is left when nothing was learned.

[Note: jobs that still run]  Short jobs finish first, so finished jobs alone look shorter than jobs are.  A job that
still runs after an hour tells that lengths of more than an hour exist.  The Kaplan-Meier estimate counts it as one that
did not finish at any length below what it has done.  Beyond the longest length seen, running or finished, nothing is
known: a job that gets there is assumed to need twice that.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]

MIN_HISTORY = 3
"""Finished jobs before their lengths are used."""
OTHER_FAMILIES = 0.5
"""All other families together count as this many finished jobs of a job's own family."""
RESTARTS_WORTH = 10.0
"""A job of unknown length is taken to need at least this many restarts' time: stopping it sooner rarely pays."""
_MAX_KEPT = 500
_MAX_FAMILIES = 500
_NOVELTY = 2.0
"""A job longer than all that have finished is assumed to be this many times as long as the longest seen."""


def attained_remaining_s(done_s: float, usual_s: float) -> float:
    """Without any history: as much again as it has had, and at least what is usual.

    >>> attained_remaining_s(done_s=10.0, usual_s=60.0), attained_remaining_s(done_s=3600.0, usual_s=60.0)
    (60.0, 3600.0)
    """
    return max(done_s, usual_s)


def least_assumed_s(usual_s: float, restart_s: float) -> float:
    """The least work a job is assumed to need if nothing is known about it.

    >>> least_assumed_s(usual_s=60.0, restart_s=0.3), least_assumed_s(usual_s=60.0, restart_s=30.0)
    (60.0, 300.0)
    """
    return max(usual_s, RESTARTS_WORTH * restart_s)


@dataclass(frozen=True, eq=False)
class LengthEstimate:
    """How long jobs are, by those that have finished and by how far the others have come (see the notes above)."""

    lengths_s: FloatArray
    """Of finished jobs, shortest first."""
    shares: FloatArray
    """The share of all jobs that each of these lengths stands for."""
    rest: float
    """The share of jobs longer than all that have finished."""
    longest_s: float
    """The longest that any job has been seen to run."""

    @classmethod
    def of(
        cls, lengths_s: Sequence[float], running_s: Sequence[float] = (), counts: Sequence[float] = ()
    ) -> LengthEstimate:
        """``lengths_s`` (sorted, at least one): finished jobs; ``counts``: how many each stands for, else 1;
        ``running_s``: the work done so far by the others."""
        lengths, running = np.array(lengths_s), np.sort(running_s)
        num = np.array(counts) if len(counts) else np.ones(len(lengths))
        num_as_long = np.cumsum(num[::-1])[::-1] + len(running) - np.searchsorted(running, lengths)
        # One more job is imagined that no length ends: the next one may be unlike all before.
        longer = np.cumprod(1.0 - num / (num_as_long + 1.0))
        shares = -np.diff(longer, prepend=1.0)
        return cls(lengths, shares, float(longer[-1]), float(np.max([lengths[-1], *running[-1:]])))

    def remaining_s(self, done_s: float) -> float:
        """The inverse Gittins index of a job that has done ``done_s``.

        >>> estimate = LengthEstimate.of([60.0] * 99 + [600_000.0])
        >>> round(estimate.remaining_s(done_s=0.0), 1), estimate.remaining_s(done_s=61.0) > 500_000
        (61.2, True)
        """
        first = np.searchsorted(self.lengths_s, done_s, side="right")
        left_s = np.append(self.lengths_s[first:], _NOVELTY * max(self.longest_s, done_s)) - done_s
        shares = np.append(self.shares[first:], self.rest)
        finished = np.cumsum(shares)
        # The others would be stopped after ``left_s`` without having finished.
        spent_s = np.cumsum(shares * left_s) + (finished[-1] - finished) * left_s
        return float(np.min(spent_s / finished))


class _Finished:
    """Lengths of finished jobs, sorted; thinned out where there are many."""

    def __init__(self) -> None:
        self.lengths_s: list[float] = []
        self.counts: list[float] = []

    def add(self, length_s: float) -> None:
        place = bisect_right(self.lengths_s, length_s)
        self.lengths_s.insert(place, length_s)
        self.counts.insert(place, 1.0)
        if len(self.lengths_s) > _MAX_KEPT:
            # Every second one goes, and the others count twice: the shape of the distribution stays.
            del self.lengths_s[::2], self.counts[::2]
            self.counts = [2.0 * count for count in self.counts]


class LengthHistory:
    """The lengths of finished jobs and the work done by others, by family (see :mod:`weft.perf.families`)."""

    def __init__(self) -> None:
        self._families: dict[str, _Finished] = {}
        self._all = _Finished()
        self._running: list[tuple[str, float]] = []
        """The family of each unfinished job, and the work it has done."""
        self._estimates: dict[str | None, LengthEstimate] = {}
        """By family, and that of all jobs (None); those that are up to date."""

    def progressed(self, unfinished: Iterable[tuple[str, float]]) -> None:
        """How much work every unfinished job has done, each with its family."""
        self._running = [(family, done_s) for family, done_s in unfinished if done_s > 0]
        self._estimates.clear()

    def finished(self, family: str, length_s: float) -> None:
        """A job of ``family`` took ``length_s`` of work."""
        own = self._families.pop(family, None) or _Finished()
        self._families[family] = own
        if len(self._families) > _MAX_FAMILIES:
            del self._families[next(iter(self._families))]  # its last job finished longest ago
        own.add(length_s)
        self._all.add(length_s)
        self._estimates.clear()

    def remaining_s(self, family: str, done_s: float, usual_s: float) -> float:
        """By jobs of its family and, the fewer there were, by all jobs; without any, by what it has done itself.

        The geometric mean of both, weighted by how many there were (an empirical-Bayes estimate of the logarithm): the
        first jobs of a family count at once, and one odd length does not decide alone.
        """
        if len(self._all.lengths_s) < MIN_HISTORY:
            return attained_remaining_s(done_s, usual_s)
        by_all_s = self._estimate(None).remaining_s(done_s)
        own = self._families.get(family)
        if own is None:
            return max(by_all_s, usual_s)
        weight = len(own.lengths_s) / (len(own.lengths_s) + OTHER_FAMILIES)
        own_s = self._estimate(family).remaining_s(done_s)
        return math.exp(weight * math.log(own_s) + (1.0 - weight) * math.log(by_all_s))

    def _estimate(self, family: str | None) -> LengthEstimate:
        if family not in self._estimates:
            known = self._all if family is None else self._families[family]
            running_s = [done_s for one, done_s in self._running if family in (None, one)]
            self._estimates[family] = LengthEstimate.of(known.lengths_s, running_s, known.counts)
        return self._estimates[family]

    def document(self) -> dict[str, list[float]]:
        """Plain data for a JSON file."""
        return {family: list(known.lengths_s) for family, known in self._families.items()}

    def restore(self, document: Mapping[str, Sequence[float]]) -> None:
        """Take over a document; raises ``ValueError`` and the like on an invalid one."""
        for family, known in document.items():
            for length_s in known:
                self.finished(str(family), float(length_s))
