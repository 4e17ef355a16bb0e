"""Which jobs may share devices at all, before the policy asks whether it pays; and the sentences about it.

Memory: two jobs on one device are both resident, so that sharing puts more workers on a machine than it has devices.
What comes in must fit into what is free.  Who moves in is known; when two that run move together somebody gets the
devices that come free, and is taken to be as large as the larger of the two.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

from weft.control.state import Job
from weft.core.cluster import Cluster
from weft.core.snapshot import Allocation, JobView, Snapshot
from weft.crossover.pairing import Measured, prospects, refusal
from weft.daemon.knowledge import Knowledge
from weft.daemon.pairs import measured

_NUM_LOOKED_AT = 4
"""Partners considered for a sentence: those that wait most for their network."""


def outnumbers(active: Sequence[Job], cluster: Cluster) -> bool:
    """Whether the jobs could not all have devices of their own."""
    return sum(job.spec.min_workers for job in active) > cluster.num_devices


def unable(job: Job, knowledge: Knowledge) -> str | None:
    """Why a job can share with nobody now; ``None`` if it can."""
    if not job.spec.may_share:
        return "its owner does not let it share its devices"
    if not knowledge.can_share(job):
        return "how long it computes and waits for its network has not been measured yet"
    return None


def alone(active: Sequence[Job], cluster: Cluster, knowledge: Knowledge) -> frozenset[str]:
    """Jobs that share with nobody.  As long as there are devices for all, pairs may last but no new ones are made."""
    may_begin = outnumbers(active, cluster)
    return frozenset(job.id for job in active if unable(job, knowledge) or not (may_begin or job.partner))


def apart(
    active: Sequence[Job], unpaired: frozenset[str], knowledge: Knowledge, free_bytes: int | None, now_s: float
) -> frozenset[frozenset[str]]:
    """Pairs that must not be: they did not do well together, or would not fit into memory."""
    split = knowledge.pairs.apart(now_s)
    able = [job for job in active if job.id not in unpaired]
    needs = {job.id: memory_bytes(job, knowledge) for job in able}
    if free_bytes is None or 2 * max(needs.values(), default=0) <= free_bytes:
        return split
    return split | {
        frozenset((one.id, other.id))
        for one, other in combinations(able, 2)
        if misfit(one, other, knowledge, free_bytes) is not None
    }


def memory_bytes(job: Job, knowledge: Knowledge) -> int:
    """What all workers of a job take together, by its reports."""
    return knowledge.of(job.id).memory_bytes * max(len(job.wanted), job.spec.min_workers)


def misfit(first: Job, second: Job, knowledge: Knowledge, free_bytes: int | None) -> str | None:
    """Why two jobs do not fit into memory together; ``None`` if they do, or already share."""
    if free_bytes is None or first.partner == second.id:
        return None
    needs = [memory_bytes(job, knowledge) for job in (first, second)]
    coming = [need for job, need in zip((first, second), needs, strict=True) if not job.devices]
    new_bytes = sum(coming) if coming else max(needs)
    if new_bytes <= free_bytes:
        return None
    return (
        f"sharing would put {new_bytes / 2**30:.1f} GiB more into memory, {free_bytes / 2**30:.1f} GiB are free "
        f"({first.id} has {needs[0] / 2**30:.1f}, {second.id} {needs[1] / 2**30:.1f})"
    )


def about_pair(
    job_id: str, partner: str, snapshot: Snapshot, allocation: Allocation, knowledge: Knowledge
) -> str | None:
    """What a pair should bring, and what it has brought."""
    views = {view.name: view for view in snapshot.jobs}
    size = allocation.workers.get(job_id, 0)
    first, second = (_at(views.get(name), size) for name in (job_id, partner))
    if first is None or second is None:
        return None
    expected = prospects(first, second, snapshot.handover_s)[0].gain
    sentence = f"together {expected:.2f} times the work of one after the other is expected"
    done = knowledge.pairs.realised(job_id, partner)
    return f"{sentence}, {done.gain:.2f} was measured" if done else sentence


def why_alone(job: Job, others: Sequence[Job], snapshot: Snapshot, knowledge: Knowledge, free_bytes: int | None) -> str:
    """Why a job shares with nobody although devices are short."""
    separation = knowledge.pairs.separation(job.id, snapshot.now_s)
    if separation is not None:
        left_s = separation.until_s - snapshot.now_s
        return f"shares with nobody: {separation.reason}, for {left_s:.0f} s from now"
    reason = unable(job, knowledge)
    if reason is not None:
        return f"shares with nobody: {reason}"
    views = {view.name: view for view in snapshot.jobs}
    able = [other for other in others if other.id != job.id and other.id in views and not unable(other, knowledge)]
    able.sort(key=lambda other: -_waiting_share(views[other.id]))
    view = views.get(job.id)
    found = [
        _why_not(job, other, view, views[other.id], snapshot, knowledge, free_bytes) for other in able[:_NUM_LOOKED_AT]
    ]
    reasons = [why_not for why_not in found if why_not]
    if not able:
        return "shares with nobody: no other job can be shared with yet"
    if len(reasons) < len(found):
        return "shares with nobody: other ways to use the devices gain more"
    return f"shares with nobody: {reasons[0]}"


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
        return "it must stay as it is for now"
    sizes = sorted(view.curve.times.keys() & other_view.curve.times.keys())
    if not sizes:
        return f"there is no number of workers that both it and {other.id} could have"
    first, second = _at(view, sizes[0]), _at(other_view, sizes[0])
    if first is None or second is None:
        return None
    return misfit(job, other, knowledge, free_bytes) or refusal(first, second, snapshot.handover_s)


def _at(view: JobView | None, size: int) -> Measured | None:
    time = view.curve.times.get(size) if view else None
    return measured(view.name, time) if view and time else None


def _waiting_share(view: JobView) -> float:
    return max(time.exposed_s / time.step_s for time in view.curve.times.values())
