"""What is decided when a policy fails: without the job that makes it fail, or without the policy."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import replace

from weft.core.snapshot import Allocation, JobView, Snapshot
from weft.elastic.rules import Room, Rules

MAX_TRIALS = 100
"""How many times the policy may be asked to find the jobs it fails on."""


def problem(snapshot: Snapshot, allocation: Allocation) -> str:
    """Why an allocation cannot be carried out; empty if it can."""
    jobs = {job.id: job for job in snapshot.jobs}
    num_devices = snapshot.num_devices
    for name, size in allocation.workers.items():
        if name not in jobs:
            return f"it names the job {name!r}, which does not exist"
        if not isinstance(size, int) or isinstance(size, bool):
            return f"it gives {name} {size!r} workers, which is not a whole number"
        spec = jobs[name].spec
        allowed = spec.min_workers <= size <= spec.max_workers and (not spec.sizes or size in spec.sizes)
        if size and size != jobs[name].workers and not allowed:
            return f"it gives {name} {size} workers, which the job does not allow on {num_devices} devices"
    in_pairs = Counter(name for pair in allocation.pairs for name in pair)
    for pair in allocation.pairs:
        sizes = {allocation.workers.get(name, 0) for name in pair}
        if len(sizes) != 1 or 0 in sizes or any(in_pairs[name] > 1 for name in pair):
            return f"it pairs {' and '.join(map(str, pair))}, which do not have the same devices to themselves"
    if allocation.num_devices() > num_devices:
        return f"it gives away {allocation.num_devices()} devices, there are {num_devices}"
    if math.isnan(allocation.valid_until_s):
        return "it does not say until when it is valid"
    return ""


def without(snapshot: Snapshot, names: Set[str]) -> Snapshot:
    """The snapshot without these jobs, their devices and their share of quotas.  Partners are both in ``names``."""
    if not names:
        return snapshot
    gone = [job for job in snapshot.jobs if job.id in names]
    num_held = sum(job.workers for job in gone if not (job.partner and job.partner < job.id))
    quotas = {
        user: max(most - sum(job.workers for job in gone if job.spec.user == user), 0)
        for user, most in snapshot.quotas.items()
    }
    rest = tuple(job for job in snapshot.jobs if job.id not in names)
    return replace(snapshot, jobs=rest, quotas=quotas, num_held=snapshot.num_held + num_held)


def culprits(jobs: Sequence[JobView], works: Callable[[Sequence[JobView]], bool]) -> list[str] | None:
    """The jobs without which the policy ``works``; ``None`` if the fault does not lie with some of the jobs.

    By bisection: a half that works on its own holds no culprit; a single job that does not work is one.

    >>> from weft.core.job import JobSpec
    >>> from weft.core.speed import SpeedCurve, StepTime
    >>> views = [JobView(JobSpec(name, 0.0), SpeedCurve({1: StepTime(1.0)}), 1.0) for name in "abcdefgh"]
    >>> culprits(views, lambda some: all(view.id != "e" for view in some))
    ['e']
    """
    found: list[str] = []
    suspects = [list(jobs)]
    num_trials = 0
    while suspects:
        group = suspects.pop()
        if num_trials >= MAX_TRIALS:
            return None
        num_trials += 1
        if works(group):
            continue
        if len(group) == 1:
            found.append(group[0].id)
        else:
            suspects += [group[len(group) // 2 :], group[: len(group) // 2]]
    innocent = [job for job in jobs if job.id not in found]
    return found if found and innocent and works(innocent) else None


def standing(jobs: Iterable[JobView]) -> Allocation:
    """What these jobs have, for them to keep."""
    having = [job for job in jobs if job.workers]
    pairs = tuple((job.id, job.partner) for job in having if job.partner and job.id < job.partner)
    return Allocation({job.id: job.workers for job in having}, pairs, kept=frozenset(job.id for job in having))


def simplest(snapshot: Snapshot, rules: Rules) -> Allocation:
    """Jobs that have devices keep them; the others start at their smallest size, in order, while devices last."""
    have = standing(snapshot.jobs)
    others = without(snapshot, have.kept)
    room = Room(others)
    started: dict[str, int] = {}
    for job in sorted(others.jobs, key=rules.rank):
        size = next((size for size in job.spec.allowed_sizes(max(room.devices, 0)) if size in job.curve.times), 0)
        if size and room.fits(job, size):
            room.take(job, size)
            started[job.id] = size
    return replace(have, workers={**have.workers, **started})
