"""How much work a job has left if its owner did not say: learned from finished jobs, else from the job itself.

Work is counted in seconds on the job's smallest size, so that jobs of different scripts can be compared.

[Note: what a length is worth to a policy]  A policy ranks jobs by remaining work.  For a job of unknown length the
right stand-in is not the mean: of 100 jobs, 99 of a minute and one of a week, the mean says hours, but the next minute
ends the job almost surely.  The Gittins index asks for which amount of further work the chance to finish per unit of
work is best; its inverse is used as the remaining work.  For lengths without a scale (a Pareto tail) it is
proportional to the work done so far, which is the least-attained-service rule: what is left when nothing was learned.
"""

from __future__ import annotations

import math
from bisect import bisect_right, insort
from collections.abc import Mapping, Sequence

MIN_HISTORY = 3
"""Finished jobs before their lengths are used."""
OTHER_FAMILIES = 0.5
"""All other families together count as this many finished jobs of a job's own family."""
RESTARTS_WORTH = 10.0
"""A job of unknown length is taken to need at least this many restarts' time: stopping it sooner rarely pays."""
_MAX_KEPT = 500
_MAX_FAMILIES = 500
_NOVELTY = 2.0
"""One more job is imagined this many times as long as the longest seen: the next one may be unlike all before."""


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


def gittins_remaining_s(lengths_s: Sequence[float], done_s: float) -> float:
    """The inverse Gittins index of a job that has done ``done_s``, its length drawn from ``lengths_s`` (sorted).

    >>> round(gittins_remaining_s([60.0] * 99 + [600_000.0], done_s=0.0), 1)
    61.2
    >>> gittins_remaining_s([60.0] * 99 + [600_000.0], done_s=61.0) > 500_000
    True
    """
    first = bisect_right(lengths_s, done_s)
    left = [length_s - done_s for length_s in lengths_s[first:]]
    left.append(max(_NOVELTY * lengths_s[-1], _NOVELTY * done_s) - done_s)
    best_s = float("inf")
    spent_s = 0.0
    for rank, one_s in enumerate(left):
        spent_s += one_s
        # All but the first ``rank + 1`` would be stopped after ``one_s`` without having finished.
        best_s = min(best_s, (spent_s + (len(left) - rank - 1) * one_s) / (rank + 1))
    return best_s


class LengthHistory:
    """The lengths of finished jobs, by family (see :mod:`weft.perf.families`)."""

    def __init__(self) -> None:
        self._families: dict[str, list[float]] = {}
        self._all: list[float] = []

    def finished(self, family: str, length_s: float) -> None:
        """A job of ``family`` took ``length_s`` of work."""
        own = self._families.pop(family, [])
        self._families[family] = own
        if len(self._families) > _MAX_FAMILIES:
            del self._families[next(iter(self._families))]  # its last job finished longest ago
        for kept in (own, self._all):
            insort(kept, length_s)
            if len(kept) > _MAX_KEPT:
                # Thinned out evenly: the shape of the distribution stays.
                del kept[::2]

    def remaining_s(self, family: str, done_s: float, usual_s: float) -> float:
        """By jobs of its family and, the fewer there were, by all jobs; without any, by what it has done itself.

        The geometric mean of both, weighted by how many there were (an empirical-Bayes estimate of the logarithm): the
        first jobs of a family count at once, and one odd length does not decide alone.
        """
        if len(self._all) < MIN_HISTORY:
            return attained_remaining_s(done_s, usual_s)
        by_all_s = gittins_remaining_s(self._all, done_s)
        own = self._families.get(family)
        if not own:
            return by_all_s
        weight = len(own) / (len(own) + OTHER_FAMILIES)
        return math.exp(weight * math.log(gittins_remaining_s(own, done_s)) + (1.0 - weight) * math.log(by_all_s))

    def document(self) -> dict[str, list[float]]:
        """Plain data for a JSON file."""
        return {family: list(known) for family, known in self._families.items()}

    def restore(self, document: Mapping[str, Sequence[float]]) -> None:
        """Take over a document; raises ``ValueError`` and the like on an invalid one."""
        for family, known in document.items():
            for length_s in known:
                self.finished(str(family), float(length_s))
