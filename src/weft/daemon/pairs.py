"""What pairs have gained, and which pairs should not be formed, based only on reports.

Every pair is reviewed for as long as it lasts.  Once both jobs have warmed up, their steps are counted over a window
and compared with the speed of each job alone; then the next window begins.  A pair that gained too little is split, and
kept apart longer each time that happens.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from weft.core.speed import StepTime
from weft.core.step_report import StepReport
from weft.elastic.pairing import PairMode, Review, predicted_gain, review

WINDOW_S = 10.0
WINDOW_STEPS = 10
"""A window lasts at least ``WINDOW_S`` and at least this many steps of each job."""
APART_S = 600.0
_MAX_DOUBLINGS = 6
_NUM_WARM_UP = 3
"""The first reports of a pair do not count: caches and connections warm up, or the steps were made before pairing."""

Pair = frozenset[str]


@dataclass
class _Count:
    """One job's steps in the current window."""

    attempt: int
    fills: bool = False
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
    """Two jobs that gained too little together."""

    until_s: float
    num_splits: int
    reason: str


class Pairs:
    """One controller's pairs, running or split."""

    def __init__(self) -> None:
        self._trials: dict[Pair, _Trial] = {}
        self._apart: dict[Pair, Separation] = {}

    def reported(
        self,
        job_id: str,
        partner: str,
        report: StepReport,
        now_s: float,
        alone: Mapping[str, StepTime],
        handover_s: float,
        *,
        fills: bool = False,
    ) -> bool:
        """Count a report of a job that shares devices; returns whether the pair should be split.

        ``alone``: the step time of each of the two with the devices to itself.  ``fills``: whether the reporting job
        runs in the gaps of the other.
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
        count.fills = fills
        count.newest = (report.progress.step, now_s)
        if any(one.num_reports <= _NUM_WARM_UP for one in trial.counts.values()):
            return False
        if count.began is None:
            count.began = count.newest
        if not all(_is_full(one) for one in trial.counts.values()):
            return False
        return self._judge(pair, trial, now_s, alone, handover_s)

    def _judge(self, pair: Pair, trial: _Trial, now_s: float, alone: Mapping[str, StepTime], handover_s: float) -> bool:
        first, second = sorted(pair)
        one, other = trial.counts[first], trial.counts[second]
        speeds = (one.steps_per_s(), other.steps_per_s())
        steps = (_not_slower(alone[first], speeds[0]), _not_slower(alone[second], speeds[1]))
        mode = PairMode.of(first_fills=one.fills, second_fills=other.fills)
        one.began, other.began = one.newest, other.newest
        trial.review = review(steps, speeds, predicted_gain(*steps, handover_s, mode))
        if not trial.review.should_split:
            return False
        before = self._apart.get(pair)
        if before is not None and before.until_s > now_s:
            return False  # already being split
        num_splits = before.num_splits + 1 if before else 1
        lasts_s = APART_S * 2 ** min(num_splits - 1, _MAX_DOUBLINGS)
        self._apart[pair] = Separation(now_s + lasts_s, num_splits, trial.review.reason)
        return True

    def over(self, together: Iterable[Pair]) -> None:
        """Drop all pairs except these, which are still running."""
        if self._trials:
            kept = set(together)
            self._trials = {pair: trial for pair, trial in self._trials.items() if pair in kept}

    def forget(self, job_id: str) -> None:
        """The job is over."""
        self._trials = {pair: trial for pair, trial in self._trials.items() if job_id not in pair}
        self._apart = {pair: why for pair, why in self._apart.items() if job_id not in pair}

    def apart(self, now_s: float) -> frozenset[Pair]:
        """Pairs that must not share now."""
        return frozenset(pair for pair, why in self._apart.items() if why.until_s > now_s)

    def measured(self, one: str, other: str) -> Review | None:
        """What a running pair gained in the last window."""
        trial = self._trials.get(frozenset((one, other)))
        return trial.review if trial else None

    def separation(self, job_id: str, now_s: float) -> tuple[str, Separation] | None:
        """The partner that this job was last split from, if that is still in force."""
        found = [
            (next(iter(pair - {job_id})), why)
            for pair, why in self._apart.items()
            if job_id in pair and why.until_s > now_s
        ]
        return max(found, key=lambda one: one[1].until_s, default=None)

    # What is kept across restarts of the controller ----------------------------------------------------------------

    def document(self) -> list[Any]:
        return [[sorted(pair), why.until_s, why.num_splits, why.reason] for pair, why in self._apart.items()]

    def restore(self, document: Iterable[Any], job_ids: Iterable[str]) -> None:
        known = set(job_ids)
        for pair, until_s, num_splits, reason in document:
            if known.issuperset(pair):
                self._apart[frozenset(pair)] = Separation(float(until_s), int(num_splits), str(reason))


def _is_full(count: _Count) -> bool:
    if count.began is None or count.newest is None:
        return False
    return count.num_steps() >= WINDOW_STEPS and count.newest[1] - count.began[1] >= WINDOW_S


def _not_slower(alone: StepTime, steps_per_s: float) -> StepTime:
    """No job is slower alone than in a pair: if the measurements say so, the machine was busy when it ran alone."""
    share = min(1.0, 1 / (steps_per_s * alone.step_s)) if steps_per_s > 0 else 1.0
    return StepTime(alone.step_s * share, alone.exposed_s * share)
