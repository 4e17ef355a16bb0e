"""What pairs have brought, and which ones should not be: from reports and nothing else.

A pair is on trial as long as it lasts.  Once both jobs have got going beside each other their steps are counted over a
while and compared with what each does alone; then the next while begins.  A pair that brought too little is kept
apart for some time, longer with every time that happens.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from weft.core.speed import StepTime
from weft.crossover.pairing import Measured, Review, prospects, review
from weft.daemon.channel import Report

WINDOW_S = 10.0
"""Steps are counted at least so long,"""
WINDOW_STEPS = 10
"""and at least so many of each job."""
APART_S = 600.0
_MAX_DOUBLINGS = 6
_NUM_WARM_UP = 3
"""The first reports beside each other warm up caches and connections, or belong to the time before."""

Pair = frozenset[str]


@dataclass
class _Count:
    """One job's steps in the present while."""

    attempt: int
    num_reports: int = 0
    began: tuple[int, float] | None = None
    newest: tuple[int, float] | None = None

    def num_steps(self) -> int:
        return self.newest[0] - self.began[0] if self.began and self.newest else 0

    def steps_per_s(self) -> float:
        if self.began is None or self.newest is None or self.newest[1] <= self.began[1]:
            return 0.0
        return self.num_steps() / (self.newest[1] - self.began[1])


@dataclass
class _Trial:
    counts: dict[str, _Count] = field(default_factory=dict)
    review: Review | None = None


@dataclass(frozen=True, slots=True)
class Separation:
    """Two jobs that did not do well together."""

    until_s: float
    num_splits: int
    reason: str


class Pairs:
    """All pairs of one controller that run, or did not do well."""

    def __init__(self) -> None:
        self._trials: dict[Pair, _Trial] = {}
        self._apart: dict[Pair, Separation] = {}

    def reported(
        self,
        job_id: str,
        partner: str,
        report: Report,
        now_s: float,
        alone: Mapping[str, StepTime],
        handover_s: float,
    ) -> bool:
        """Count in a report of a job that shares; returns whether the pair should be split.

        ``alone``: the step of each of the two where it has the devices for itself.
        """
        pair = frozenset((job_id, partner))
        trial = self._trials.setdefault(pair, _Trial())
        count = trial.counts.get(job_id)
        if count is None or count.attempt != report.attempt:
            trial.counts.pop(job_id, None)
            for other in trial.counts.values():
                other.num_reports, other.began = 0, None
            count = trial.counts[job_id] = _Count(report.attempt)
        if len(trial.counts) < 2:
            return False
        count.num_reports += 1
        count.newest = (report.step, now_s)
        if any(one.num_reports <= _NUM_WARM_UP for one in trial.counts.values()):
            return False
        if count.began is None:
            count.began = count.newest
        if not all(_is_full(one) for one in trial.counts.values()):
            return False
        return self._judge(pair, trial, now_s, alone, handover_s)

    def _judge(self, pair: Pair, trial: _Trial, now_s: float, alone: Mapping[str, StepTime], handover_s: float) -> bool:
        first, second = sorted(pair)
        speeds = (trial.counts[first].steps_per_s(), trial.counts[second].steps_per_s())
        steps = (_not_slower(alone[first], speeds[0]), _not_slower(alone[second], speeds[1]))
        expected = prospects(measured(first, steps[0]), measured(second, steps[1]), handover_s)[0]
        for count in trial.counts.values():
            count.began = count.newest
        trial.review = review(expected, *speeds)
        if not trial.review.should_split:
            return False
        before = self._apart.get(pair)
        if before is not None and before.until_s > now_s:
            return False  # known already: they are on their way
        num_splits = before.num_splits + 1 if before else 1
        lasts_s = APART_S * 2 ** min(num_splits - 1, _MAX_DOUBLINGS)
        self._apart[pair] = Separation(now_s + lasts_s, num_splits, trial.review.reason)
        return True

    def over(self, together: Iterable[Pair]) -> None:
        """Only these pairs still run."""
        if self._trials:
            kept = set(together)
            self._trials = {pair: trial for pair, trial in self._trials.items() if pair in kept}

    def forget(self, job_id: str) -> None:
        """The job is over."""
        self._trials = {pair: trial for pair, trial in self._trials.items() if job_id not in pair}
        self._apart = {pair: why for pair, why in self._apart.items() if job_id not in pair}

    def apart(self, now_s: float) -> frozenset[Pair]:
        """Who must not share now."""
        return frozenset(pair for pair, why in self._apart.items() if why.until_s > now_s)

    def realised(self, one: str, other: str) -> Review | None:
        """What a pair that runs has brought in the last while."""
        trial = self._trials.get(frozenset((one, other)))
        return trial.review if trial else None

    def separation(self, job_id: str, now_s: float) -> Separation | None:
        """The last split of this job that is still in force."""
        found = [why for pair, why in self._apart.items() if job_id in pair and why.until_s > now_s]
        return max(found, key=lambda why: why.until_s, default=None)

    # What is kept while the controller is away ---------------------------------------------------------------------

    def document(self) -> list[Any]:
        return [[sorted(pair), why.until_s, why.num_splits, why.reason] for pair, why in self._apart.items()]

    def restore(self, document: Iterable[Any], job_ids: Iterable[str]) -> None:
        there = set(job_ids)
        for pair, until_s, num_splits, reason in document:
            if there.issuperset(pair):
                self._apart[frozenset(pair)] = Separation(float(until_s), int(num_splits), str(reason))


def _is_full(count: _Count) -> bool:
    if count.began is None or count.newest is None:
        return False
    return count.num_steps() >= WINDOW_STEPS and count.newest[1] - count.began[1] >= WINDOW_S


def _not_slower(alone: StepTime, steps_per_s: float) -> StepTime:
    """Nobody is slower alone than beside another: if that was measured, the machine was busy at the time."""
    share = min(1.0, 1 / (steps_per_s * alone.step_s)) if steps_per_s > 0 else 1.0
    return StepTime(alone.step_s * share, alone.exposed_s * share)


def measured(job_id: str, step: StepTime) -> Measured:
    """A job for the pairing; a step that only waits does not exist: the least of compute stands for what was not seen.

    How much a job may be slowed down is for the policy to weigh.

    >>> measured("a", StepTime(2.0, 0.5)).compute_s
    1.5
    """
    return Measured(job_id, max(step.compute_s, 1e-6), step.exposed_s, max_slowdown=float("inf"))
