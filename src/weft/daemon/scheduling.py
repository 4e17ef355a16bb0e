"""Live decisions: when to decide, and what the controller knows about real jobs.

A job that has not reported since it started, or that cannot resume after a stop, must not be touched: stopping it would
lose its work.  ``control/decision.py`` makes the decisions, live and in the simulator; this module provides its inputs
and explains its results.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace

from weft.control.decision import Belief, DecisionResult, SharingTerms, decide, outnumbers
from weft.control.queue_order import QueuePlace, queue_places
from weft.control.reducer import reduce
from weft.control.state import Job, JobState, State
from weft.core.cluster import Cluster
from weft.core.events import JobSubmitted
from weft.core.job import JobSpec
from weft.core.reason import Reason
from weft.daemon import admission, job_reasons
from weft.daemon.guarded_policy import GuardedPolicy
from weft.daemon.job_reasons import SharingSituation
from weft.daemon.knowledge import Knowledge
from weft.elastic.optimal import UtilityPolicy
from weft.elastic.policy import BasePolicy
from weft.elastic.queues import FixedSizePolicy
from weft.elastic.registry import policy_named
from weft.elastic.rules import Rules


@dataclass(frozen=True, slots=True)
class SchedulingOptions:
    """What `weft up` can set."""

    policy: str = "balanced"
    hold_s: float = 10.0
    """Minimum time between resizes of a job."""
    review_s: float = 60.0
    usual_s: float = 60.0
    """Assumed length of a job about which nothing is known."""
    crossover: bool = False
    handover_s: float = 0.0
    why_unshared: str = ""
    """Reason shown for waiting jobs if devices are not shared."""
    quotas: Mapping[str, int] = field(default_factory=dict)


class Scheduler:
    """Decides for one controller; remembers only which reasons have been reported."""

    def __init__(
        self,
        options: SchedulingOptions,
        free_bytes: Callable[[], int | None] = lambda: None,
        on_error: Callable[[], None] = lambda: None,
    ) -> None:
        """``free_bytes``: memory that jobs could still use on this machine, if that should be checked."""
        self.options = options
        self._free_bytes = free_bytes
        self.policy: BasePolicy = policy_named(options.policy, Rules(hold_s=options.hold_s, review_s=options.review_s))
        self.guarded = GuardedPolicy(self.policy, on_error)
        self._pairs_jobs = isinstance(self.policy, UtilityPolicy)
        self._told: dict[str, Reason] = {}
        """The reasons that were reported last."""
        self.queue: Mapping[str, QueuePlace] = {}
        """The queue places of jobs that got no devices in the last decision."""

    def decide(self, state: State, knowledge: Knowledge, now_s: float) -> DecisionResult:
        """Who gets which devices from now on; the event has a reason for every job whose situation changed."""
        active = [job for job in state.jobs.active.values() if not job.is_cancelled]
        beliefs = self.beliefs(active, state, knowledge, now_s)
        decided = self._decided(state, knowledge, self.guarded, now_s, beliefs)
        self.queue = queue_places(active, decided.event.devices, beliefs, state.cluster.num_devices, now_s)
        # Places count devices of all kinds alike, and know no quotas, so expected starts are only guesses.
        if state.cluster.is_mixed or self.options.quotas:
            self.queue = {job_id: replace(place, is_certain=False) for job_id, place in self.queue.items()}
        reasons = {}
        for job in active:
            reason = job_reasons.why(decided, job, self.guarded, knowledge)
            is_known = reason == self._told[job.id] if job.id in self._told else job_reasons.is_told(job, reason, state)
            if job.id in decided.changed or not (is_known or job_reasons.still_holds(job, reason)):
                reasons[job.id] = reason
        kept = {job.id: self._told[job.id] for job in active if job.id in self._told}
        self._told = kept | reasons
        if not reasons:
            return decided
        details = {
            job.id: job_reasons.measured_sharing(job, reasons[job.id], state, knowledge, now_s)
            for job in active
            if job.id in reasons
        }
        sentences, codes = job_reasons.told(reasons, state)
        event = replace(
            decided.event,
            reasons=sentences,
            reason_codes=codes,
            details={job_id: detail for job_id, detail in details.items() if detail},
        )
        return replace(decided, event=event)

    def repeat(self) -> None:
        """The last decision was not carried out: its reasons have not been reported."""
        self._told = {}

    def explain(self, decided: DecisionResult, job: Job, state: State, knowledge: Knowledge) -> str | None:
        """Why the job has its workers since the last decision; ``None`` if that decision did not include the job."""
        there = job.id in decided.untouched or job.id in decided.held_back
        if not there and all(view.id != job.id for view in decided.snapshot.jobs):
            return None
        return job_reasons.explained(decided, job, state, self.guarded, knowledge, self._sharing(state))

    def _sharing(self, state: State) -> SharingSituation:
        options = self.options
        free_bytes = self._free_bytes() if options.crossover else None
        may_pair = self._pairs_jobs and outnumbers(state)
        return SharingSituation(may_pair, options.crossover, options.why_unshared, free_bytes)

    def outlook(
        self, state: State, knowledge: Knowledge, spec: JobSpec, total_steps: int | None, now_s: float
    ) -> tuple[int, Reason]:
        """What a job would get if it were submitted now: workers, and why."""
        submitted, _ = reduce(state, JobSubmitted(now_s, spec, total_steps))
        # A copy: if the policy fails on this hypothetical job, no real job must be set aside.
        asked = copy(self.guarded)
        active = [job for job in submitted.jobs.active.values() if not job.is_cancelled]
        decided = self._decided(submitted, knowledge, asked, now_s, self.beliefs(active, submitted, knowledge, now_s))
        return decided.allocation.workers.get(spec.id, 0), job_reasons.why(
            decided, submitted.jobs[spec.id], asked, knowledge
        )

    def beliefs(self, active: Sequence[Job], state: State, knowledge: Knowledge, now_s: float) -> Mapping[str, Belief]:
        """What a decision is told about each of these jobs."""
        cluster, usual_s = state.cluster, self.options.usual_s
        knowledge.progressed(active, now_s)
        return {
            job.id: knowledge.belief(job, self._first_sizes(job.spec, cluster, knowledge), now_s, usual_s)
            for job in active
        }

    def _decided(
        self, state: State, knowledge: Knowledge, policy: GuardedPolicy, now_s: float, beliefs: Mapping[str, Belief]
    ) -> DecisionResult:
        options = self.options
        active = [job for job in state.jobs.active.values() if not job.is_cancelled]
        untouchable = {job.id for job in active if job.state is JobState.RUNNING and not knowledge.is_movable(job)}
        sharing = None
        if options.crossover:
            may_begin = outnumbers(state)
            able = [job for job in active if (may_begin or job.wanted_partner) and not admission.unable(job, knowledge)]
            sharing = SharingTerms(options.handover_s, admission.apart(able, knowledge, self._free_bytes(), now_s))
        decided = decide(state, beliefs, policy, now_s, untouchable=untouchable, quotas=options.quotas, sharing=sharing)
        if not untouchable:
            return decided
        # Nothing announces that a job has become able to resume.
        due_s = min(decided.allocation.valid_until_s, now_s + options.review_s)
        return replace(decided, allocation=replace(decided.allocation, valid_until_s=due_s))

    def _first_sizes(self, spec: JobSpec, cluster: Cluster, knowledge: Knowledge) -> tuple[int, ...]:
        """Sizes for a job's first start: its smallest, or, within its quota, the requested one under a policy that
        never resizes.

        A job that cannot be resized later is given the best size at once.
        """
        allowed = spec.allowed_sizes(cluster.most_of_one_kind) or (spec.min_workers,)
        if not isinstance(self.policy, FixedSizePolicy):
            return allowed if knowledge.looks_fixed(spec.id) else allowed[:1]
        most = min(spec.requested_workers, self.options.quotas.get(spec.user, spec.requested_workers))
        return (max((size for size in allowed if size <= most), default=allowed[0]),)


_GATHER_S = 0.05
"""Events this close together share one decision."""
_MIN_GAP_S = 0.25
_REST_PER_DECISION = 10.0
"""Deciding takes at most about a tenth of the time."""
_AFTER_FAILURE_S = 10.0


class DecisionTimer:
    """When to decide: soon after something happened, not too often, and again when a decision expires."""

    def __init__(self) -> None:
        self._wanted_s = math.inf
        self._rested_s = -math.inf

    @property
    def due_s(self) -> float:
        return max(self._wanted_s, self._rested_s)

    def want(self, now_s: float) -> None:
        self._wanted_s = min(self._wanted_s, now_s + _GATHER_S)

    def begin(self) -> None:
        """A decision is being made: no other is needed until something happens."""
        self._wanted_s = math.inf

    def made(self, now_s: float, took_s: float, valid_until_s: float) -> None:
        self._rested_s = now_s + max(_MIN_GAP_S, _REST_PER_DECISION * took_s)
        self._wanted_s = max(valid_until_s, self._rested_s)

    def failed(self, now_s: float) -> float:
        """It could not be made; returns the seconds until the next try."""
        self._wanted_s = self._rested_s = now_s + _AFTER_FAILURE_S
        return _AFTER_FAILURE_S

    def not_written(self, try_again_s: float) -> None:
        self._wanted_s = try_again_s
