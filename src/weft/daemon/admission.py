"""Which jobs may share devices at all, before the policy considers whether it pays off; and sentences that explain it.

Memory: two jobs on one device are both resident, so sharing puts more workers on a machine than it has devices.  A job
that moves in must fit in free memory.  When two running jobs move together, another job gets the devices that become
free; it is assumed to be as large as the larger of the two.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

from weft.control.state import Job
from weft.core.reason import short_name
from weft.core.snapshot import Allocation, JobView, Snapshot
from weft.core.speed import StepTime
from weft.daemon.knowledge import Knowledge
from weft.elastic.pairing import PairMode, predicted_gain, refusal

_MAX_EXPLAINED = 4
"""Partners considered in an explanation: those that wait most for the network."""


def unable(job: Job, knowledge: Knowledge) -> str | None:
    """Why a job cannot share now; ``None`` if it can."""
    if not job.spec.may_share:
        return "its owner does not allow it to share devices"
    if not knowledge.can_share(job):
        return "its compute and network times have not been measured yet"
    return None


def apart(able: Sequence[Job], knowledge: Knowledge, free_bytes: int | None, now_s: float) -> frozenset[frozenset[str]]:
    """Pairs that must not share: they gained too little before, or would not fit in memory."""
    split = knowledge.pairs.apart(now_s)
    needs = [memory_bytes(job, knowledge) for job in able]
    if free_bytes is None or 2 * max(needs, default=0) <= free_bytes:
        return split
    return split | {
        frozenset((one.id, other.id))
        for one, other in combinations(able, 2)
        if misfit(one, other, knowledge, free_bytes) is not None
    }


def memory_bytes(job: Job, knowledge: Knowledge) -> int:
    """Total memory of a job's workers, according to its reports."""
    return knowledge.of(job.id).memory_bytes * max(len(job.wanted), job.spec.min_workers)


def misfit(first: Job, second: Job, knowledge: Knowledge, free_bytes: int | None) -> str | None:
    """Why two jobs do not fit in memory together; ``None`` if they do, or already share."""
    if free_bytes is None or first.partner == second.id:
        return None
    needs = [memory_bytes(job, knowledge) for job in (first, second)]
    coming = [need for job, need in zip((first, second), needs, strict=True) if not job.devices]
    new_bytes = sum(coming) if coming else max(needs)
    if new_bytes <= free_bytes:
        return None
    return (
        f"sharing would need {new_bytes / 2**30:.1f} GiB more memory, but only {free_bytes / 2**30:.1f} GiB are free "
        f"({_name(first)} uses {needs[0] / 2**30:.1f}, {_name(second)} {needs[1] / 2**30:.1f})"
    )


def expected_gain(job_id: str, partner: str, snapshot: Snapshot, allocation: Allocation) -> float | None:
    """The expected gain of a pair, based on the steps of both jobs alone; ``None`` if those are unknown."""
    views = {view.id: view for view in snapshot.jobs if view.id in (job_id, partner)}
    size = allocation.workers.get(job_id, 0)
    first, second = (_at(views.get(name), size) for name in (job_id, partner))
    if first is None or second is None:
        return None
    mode = PairMode.of(first_fills=job_id in allocation.fillers, second_fills=partner in allocation.fillers)
    return predicted_gain(first, second, snapshot.handover_s, mode)


def why_split(job: Job, others: Sequence[Job], now_s: float, knowledge: Knowledge) -> str:
    """What a pair gained that this job was split from; "" if there was none lately."""
    separation = knowledge.pairs.separation(job.id, now_s)
    if separation is None:
        return ""
    partner, why = separation
    called = next((_name(other) for other in others if other.id == partner), partner)
    return f"does not share with {called} for another {why.until_s - now_s:.0f} s: {why.reason}"


def why_alone(job: Job, others: Sequence[Job], snapshot: Snapshot, knowledge: Knowledge, free_bytes: int | None) -> str:
    """Why a job does not share although jobs outnumber devices."""
    split = why_split(job, others, snapshot.now_s, knowledge)
    if split:
        return split
    reason = unable(job, knowledge)
    if reason is not None:
        return f"does not share: {reason}"
    views = {view.id: view for view in snapshot.jobs}
    able = [other for other in others if other.id != job.id and other.id in views and not unable(other, knowledge)]
    able.sort(key=lambda other: -_waiting_share(views[other.id]))
    view = views.get(job.id)
    found = [
        _why_not(job, other, view, views[other.id], snapshot, knowledge, free_bytes) for other in able[:_MAX_EXPLAINED]
    ]
    reasons = [why_not for why_not in found if why_not]
    if not able:
        return "does not share: no other job is ready to share yet"
    if len(reasons) < len(found):
        return "does not share: other ways to use the devices gain more"
    return f"does not share: {reasons[0]}"


def _why_not(
    job: Job,
    other: Job,
    view: JobView | None,
    other_view: JobView,
    snapshot: Snapshot,
    knowledge: Knowledge,
    free_bytes: int | None,
) -> str | None:
    if view is None:
        return "it must not be moved now"
    sizes = sorted(view.curve.times.keys() & other_view.curve.times.keys())
    if not sizes:
        return f"no number of workers suits both it and {_name(other)}"
    first, second = _at(view, sizes[0]), _at(other_view, sizes[0])
    if first is None or second is None:
        return None
    return misfit(job, other, knowledge, free_bytes) or refusal(_name(other), first, second, snapshot.handover_s)


def _name(job: Job) -> str:
    return short_name(job.name or job.id)


def _at(view: JobView | None, size: int) -> StepTime | None:
    return view.curve.times.get(size) if view else None


def _waiting_share(view: JobView) -> float:
    return max(time.exposed_s / time.step_s for time in view.curve.times.values())
