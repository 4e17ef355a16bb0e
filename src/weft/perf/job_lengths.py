"""How much work a job has left if its owner did not say: learned from finished jobs, else from the job itself.

Work is counted in seconds on the job's smallest size, so that jobs of different scripts can be compared.

[Note: what a length is worth to a policy]  A policy ranks jobs by remaining work.  For a job of unknown length the
stand-in is the mean of what is left of all jobs that are longer than what this one has done.  The Gittins index, the
best chance to finish per unit of further work, is optimal on one machine that serves one job at a time.  On a cluster
where many jobs take days, it was worse than equal shares for all (docs/policies.md has the comparison).

[Note: who resembles whom]  The jobs of a family resemble each other most, then those that request about as many
workers, then all jobs.  A job on one device is rarely a week long, one on 32 rarely a minute.

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
OTHERS = 0.5
"""All jobs outside a group count together as this many finished jobs of the group."""
RESTARTS_WORTH = 10.0
"""A job of unknown length is taken to need at least this many restarts' time: stopping it sooner rarely pays."""
_MAX_KEPT = 500
_MAX_GROUPS = 500
_REQUEST = "#"
"""How the names of groups by request begin; those of families do not."""
_NOVELTY = 2.0
"""A job longer than all that have finished is assumed to be this many times as long as the longest seen."""


Kin = tuple[str, ...]
"""The groups a job belongs to, the closest first."""


def kin_of(requested_workers: int, family: str = "") -> Kin:
    """The family, if it is known, and the jobs that request about as many workers: 1, 2 to 3, 4 to 7, and so on.

    >>> kin_of(6, "ana/bert"), kin_of(4)
    (('ana/bert', '#3'), ('#3',))
    """
    request = f"{_REQUEST}{requested_workers.bit_length()}"
    return (family, request) if family else (request,)


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
        """The mean over all jobs longer than ``done_s`` of what is left of them.

        >>> estimate = LengthEstimate.of([60.0] * 50 + [600.0] * 50)
        >>> round(estimate.remaining_s(done_s=0.0)), round(estimate.remaining_s(done_s=100.0))
        (339, 512)
        """
        first = np.searchsorted(self.lengths_s, done_s, side="right")
        left_s = np.append(self.lengths_s[first:], _NOVELTY * max(self.longest_s, done_s)) - done_s
        shares = np.append(self.shares[first:], self.rest)
        return float(shares @ left_s / shares.sum())


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
    """The lengths of finished jobs and the work done by others, by group (see the note above)."""

    def __init__(self) -> None:
        self._groups: dict[str, _Finished] = {}
        self._all = _Finished()
        self._running: list[tuple[Kin, float]] = []
        """The groups of each unfinished job, and the work it has done."""
        self._estimates: dict[str | None, LengthEstimate] = {}
        """By group, and that of all jobs (None); those that are up to date."""

    def progressed(self, unfinished: Iterable[tuple[Kin, float]]) -> None:
        """How much work every unfinished job has done, each with its groups."""
        self._running = [(kin, done_s) for kin, done_s in unfinished if done_s > 0]
        self._estimates.clear()

    def finished(self, kin: Kin, length_s: float) -> None:
        """A job of these groups took ``length_s`` of work."""
        for group in kin:
            self._add(group, length_s)
        self._all.add(length_s)

    def _add(self, group: str, length_s: float) -> None:
        own = self._groups.pop(group, None) or _Finished()
        self._groups[group] = own
        if len(self._groups) > _MAX_GROUPS:
            del self._groups[next(iter(self._groups))]  # its last job finished longest ago
        own.add(length_s)
        self._estimates.clear()

    def remaining_s(self, kin: Kin, done_s: float, usual_s: float) -> float:
        """By the closest jobs and, the fewer there were, by others; without any, by what it has done itself.

        The geometric mean, weighted by how many there were (an empirical-Bayes estimate of the logarithm): the first
        jobs of a group count at once, and one odd length does not decide alone.
        """
        if len(self._all.lengths_s) < MIN_HISTORY:
            return attained_remaining_s(done_s, usual_s)
        log_s = math.log(self._estimate(None).remaining_s(done_s))
        has_family = False
        for group in reversed(kin):
            own = self._groups.get(group)
            if own is not None:
                weight = len(own.lengths_s) / (len(own.lengths_s) + OTHERS)
                log_s += weight * (math.log(self._estimate(group).remaining_s(done_s)) - log_s)
                has_family = not group.startswith(_REQUEST)
        return math.exp(log_s) if has_family else max(math.exp(log_s), usual_s)

    def _estimate(self, group: str | None) -> LengthEstimate:
        if group not in self._estimates:
            known = self._all if group is None else self._groups[group]
            running_s = [done_s for kin, done_s in self._running if group is None or group in kin]
            self._estimates[group] = LengthEstimate.of(known.lengths_s, running_s, known.counts)
        return self._estimates[group]

    def document(self) -> dict[str, list[float]]:
        """Plain data for a JSON file."""
        return {group: list(known.lengths_s) for group, known in self._groups.items()}

    def restore(self, document: Mapping[str, Sequence[float]]) -> None:
        """Take over a document; raises ``ValueError`` and the like on an invalid one."""
        for name, known in document.items():
            group = str(name)
            for length_s in map(float, known):
                self._add(group, length_s)
                if not group.startswith(_REQUEST):  # otherwise a job would count twice
                    self._all.add(length_s)
