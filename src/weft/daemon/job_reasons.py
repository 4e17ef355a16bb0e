"""Why jobs have their workers, live: the policy's reason, plus what the controller knows about real jobs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from weft.control.decision import DecisionResult
from weft.control.state import Job, State
from weft.core.reason import (
    AsRequested,
    Assigned,
    Exploring,
    HeldBack,
    NoReport,
    NotResizable,
    PolicyChoice,
    PolicyFailed,
    Preempted,
    Priority,
    Reason,
    Reserved,
    Resources,
    SharedWith,
    UnknownLength,
    code_of,
    in_words,
)
from weft.daemon import admission
from weft.daemon.guarded_policy import GuardedPolicy
from weft.daemon.knowledge import Knowledge

_PREEMPTED = Preempted.__name__
_SET_ASIDE = "cancel it and submit it with other options, or start the controller with another --policy"


@dataclass(frozen=True, slots=True)
class SharingSituation:
    """What can be said about sharing, regardless of the policy's decision."""

    may_pair: bool
    """Whether the policy can form pairs, and jobs outnumber devices."""
    is_on: bool
    why_unshared: str
    """Why devices are not shared, if sharing is off."""
    free_bytes: int | None
    """Memory that jobs could still use on this machine, if that is checked."""


def why(decided: DecisionResult, job: Job, policy: GuardedPolicy, knowledge: Knowledge) -> Reason:
    """Why the job has its workers after this decision, or waits."""
    snapshot, allocation, reservation = decided.snapshot, decided.allocation, decided.reservation
    if reservation and job.id in decided.held_back:
        return (HeldBack if knowledge.is_length_known(job) else UnknownLength)(reservation.job)
    if job.id in decided.untouched and job.id not in allocation.kept:
        return _untouched(job, decided, policy, knowledge)
    reason = policy.explain(snapshot, allocation, job.id)
    if isinstance(reason, Resources) and reservation and reservation.job == job.id:
        return Reserved(reason.needs, reservation.after)
    if isinstance(reason, SharedWith):
        gain = admission.expected_gain(job.id, reason.partner, snapshot, allocation)
        return replace(reason, gain=gain)
    return reason


def _untouched(job: Job, decided: DecisionResult, policy: GuardedPolicy, knowledge: Knowledge) -> Reason:
    """Why a job keeps exactly what it has."""
    workers = len(job.wanted)
    known = knowledge.of(job.id)
    if job.partner is not None:
        return SharedWith(job.partner, workers, fills=job.fills)
    if job.spec.min_workers == workers == job.spec.max_workers:
        return AsRequested(workers)
    if not known.can_resume:
        return NotResizable(workers)
    sizes = job.spec.allowed_sizes(decided.snapshot.cluster.num_devices)
    larger = next((size for size in sizes if size > workers), None)
    hold_s = policy.policy.rules.hold_s
    # Many programs never report, so nothing may be promised about one that has been silent for this long.
    is_silent = known.attempt != job.attempt and (known.samples or decided.snapshot.now_s - job.changed_s > hold_s)
    return NoReport(workers) if larger is None or is_silent else Exploring(workers, larger, hold_s)


def until_its_start(job: Job) -> Assigned | None:
    """The reason of a job that was given devices by the last decision but cannot start there yet."""
    return Assigned(len(job.wanted)) if job.wanted and not job.devices else None


def is_told(job: Job, reason: Reason, state: State) -> bool:
    """Whether the job already has this reason, perhaps from an earlier controller."""
    return job.reason_code == code_of(reason) and job.reason == in_words(reason, state.name_of)


def still_holds(job: Job, reason: Reason) -> bool:
    """Whether the job's last reason is more informative than this one and still true."""
    waits = isinstance(reason, Resources | Reserved | Priority | PolicyChoice)
    return waits and not job.wanted and job.reason_code == _PREEMPTED


def measured_sharing(job: Job, reason: Reason, state: State, knowledge: Knowledge, now_s: float) -> str:
    """What a pair has gained: this one, or the last one if it was split."""
    if isinstance(reason, SharedWith):
        done = knowledge.pairs.measured(job.id, reason.partner)
        return f"{done.gain:.2f}x was measured" if done else ""
    return admission.why_split(job, tuple(state.jobs.active.values()), now_s, knowledge)


def sharing_detail(
    decided: DecisionResult, job: Job, reason: Reason, state: State, knowledge: Knowledge, sharing: SharingSituation
) -> str:
    """What a pair has gained, or why the job does not share although jobs outnumber devices."""
    if isinstance(reason, SharedWith):
        return measured_sharing(job, reason, state, knowledge, decided.snapshot.now_s)
    is_settled = isinstance(reason, PolicyFailed | NotResizable | NoReport | HeldBack | UnknownLength)
    if is_settled or not sharing.may_pair:
        return ""
    if not sharing.is_on:
        return sharing.why_unshared
    others = [other for other in state.jobs.active.values() if not other.is_cancelled]
    return admission.why_alone(job, others, decided.snapshot, knowledge, sharing.free_bytes)


def explained(
    decided: DecisionResult,
    job: Job,
    state: State,
    policy: GuardedPolicy,
    knowledge: Knowledge,
    sharing: SharingSituation,
) -> str:
    """Everything that can be said about the job now, for ``weft explain``."""
    reason = why(decided, job, policy, knowledge)
    parts = [in_words(reason, state.name_of), sharing_detail(decided, job, reason, state, knowledge, sharing)]
    in_snapshot = any(view.id == job.id for view in decided.snapshot.jobs)
    if isinstance(reason, PolicyFailed):
        parts.append(_SET_ASIDE if reason.on_this_job else "")
    elif in_snapshot:
        explainer = policy.explainer(decided.snapshot, decided.allocation)
        if isinstance(reason, Resources | Reserved | Priority | PolicyChoice):
            parts.append(f"{explainer.num_free} of {state.cluster.num_devices} devices are free")
        parts.append(explainer.why_this_kind(job.id))
        progress = knowledge.reports.progress(job)
        if progress.total_steps is not None:
            parts.append(explainer.time_left(job.id, max(progress.total_steps - progress.step, 0)))
        parts += [f"policy {policy.policy.name}: {policy.policy.because}"]
    return "; ".join(part for part in parts if part)


def told(reasons: Mapping[str, Reason], state: State) -> tuple[dict[str, str], dict[str, str]]:
    """Sentences and codes, for the journal."""
    sentences = {job_id: in_words(reason, state.name_of) for job_id, reason in reasons.items()}
    return sentences, {job_id: code_of(reason) for job_id, reason in reasons.items()}
