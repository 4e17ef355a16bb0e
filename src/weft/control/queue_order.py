"""The queue: which job is next, which devices are kept for its head, and when waiting jobs can expect to start.

[Note: first starts]  A policy may prefer many small jobs to one that needs several devices at once, forever.  So a job
that cannot squeeze in (it needs more than one worker, or has only one size) and has never run is due for its first
start as soon as it would run under first in, first out (all jobs submitted before it at the sizes they asked for, and
this one, fit together); policies that keep the order must start it then.  From then on it competes like any other job.

[Note: backfill]  Jobs that must not be touched may block the head of the queue.  Then later jobs start only where they
do not delay it as far as is known: they can be stopped again, are expected to end before it can start, or leave enough
devices for it.  For a job of unknown length that expectation is a guess; it is trusted until the head of the queue has
waited ``PATIENCE_S``.  So the head waits at most that long, plus the longest job that was started by then.

In a cluster of several device kinds, devices are kept on the kind where the head of the queue can start first.  Jobs
that would delay it there may still start on other kinds.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from weft.control.state import Job
from weft.core.job import JobSpec
from weft.core.snapshot import JobView, Snapshot
from weft.core.speed import SpeedCurve

if TYPE_CHECKING:
    from weft.control.decision import Belief

NO_QUOTAS: Mapping[str, int] = MappingProxyType({})
PATIENCE_S = 120.0
"""How long jobs of unknown length may start ahead of a blocked job at the head of the queue."""
_ROUNDED_TO_S = 10.0
"""An expected start is not more exact than this, and should not change with every decision."""


@dataclass(frozen=True, slots=True)
class Reservation:
    """Devices are kept for the job at the head of the queue, which cannot start yet."""

    job: str
    at_s: float
    """When it is expected to start."""
    is_certain: bool
    """Whether the ends of all jobs it waits for are known: their lengths were declared, their speeds measured."""
    num_spare: int
    """Devices that it will leave free then."""
    after: tuple[str, ...] = ()
    """The jobs that must end before it can start."""


@dataclass(frozen=True, slots=True)
class QueuePlace:
    """Where a waiting job stands."""

    position: int
    """1 is the next."""
    expected_start_s: float | None
    """With current sizes and lengths, first in, first out; None if there will never be enough devices."""
    is_certain: bool
    """Whether it is based only on known ends: declared lengths and measured speeds."""
    may_preempt: bool = False
    """Whether it may start sooner, on devices of a running job of lower priority."""


def place_in_words(place: QueuePlace, now_s: float) -> str:
    """For ``weft explain``: the place, the expected start, and what that rests on."""
    words = f"number {place.position} in the queue"
    if place.may_preempt:
        return f"{words}; its start time is unknown, since it may take devices from jobs of lower priority"
    if place.expected_start_s is None:
        return words
    if not place.is_certain:
        return f"{words}; its start time is unknown, since not all jobs before it have a known length and speed"
    left_s = max(place.expected_start_s - now_s, 0.0)
    return f"{words}, expected to start in about {left_s:.0f} s if running jobs keep their devices until they end"


def due_first_starts(jobs: Iterable[Job], num_devices: int) -> frozenset[str]:
    """The jobs that first in, first out would have started by now, of those that cannot squeeze in."""
    found = []
    taken = 0
    for job in jobs:
        spec = job.spec
        if job.started_s is None and not job.wanted and _is_awkward(spec) and taken + spec.min_workers <= num_devices:
            found.append(job.id)
        taken += max(len(job.devices), min(spec.requested_workers, num_devices))
        if taken >= num_devices:
            break
    return frozenset(found)


def _is_awkward(spec: JobSpec) -> bool:
    return spec.min_workers > 1 or spec.min_workers == spec.max_workers or len(spec.sizes) == 1


def find_reservation(
    views: Sequence[JobView],
    blocking: Sequence[Job],
    beliefs: Mapping[str, Belief],
    num_free: int,
    num_devices: int,
    now_s: float,
    quotas: Mapping[str, int] = NO_QUOTAS,
) -> Reservation | None:
    """The reservation of the first job that does not fit in ``num_free`` devices next to those ``blocking`` it.

    A job that only its user's quota keeps waiting gets none: free devices would not help it.
    """
    for view in sorted(views, key=lambda view: -view.spec.priority):
        least = _least(view.spec, num_devices)
        if view.workers or not num_free < least <= num_devices:
            continue
        user = view.spec.user
        held = {job.id: len(job.wanted) for job in blocking if job.spec.user == user}
        room = quotas.get(user, num_devices + sum(held.values())) - sum(held.values())
        free, is_certain = num_free, True
        after: list[str] = []
        for end_s, num, known, names in _ends([(job, job.wanted) for job in blocking], beliefs, now_s):
            free += num
            is_certain &= known
            after += names
            room += sum(held.get(name, 0) for name in names)
            if free >= least and room >= least:
                return Reservation(view.id, end_s, is_certain, free - least, tuple(after))
    return None


def held_back(
    views: Sequence[JobView], reservation: Reservation, beliefs: Mapping[str, Belief], num_devices: int, now_s: float
) -> tuple[list[JobView], frozenset[str]]:
    """The views with those jobs left out, or kept small, that would delay the job with the reservation."""
    head = next(view for view in views if view.id == reservation.job)
    spare = reservation.num_spare
    kept: list[JobView] = []
    out: set[str] = set()
    is_later = False
    for view in views:
        is_later |= view is head
        belief = beliefs[view.id]
        least = _least(view.spec, num_devices)
        if (
            not is_later
            or view is head
            or view.workers
            or not least
            or belief.can_stop
            or view.spec.priority > head.spec.priority
            or (
                (belief.is_length_known or head.waited_s < PATIENCE_S)
                and now_s + _length_s(belief, least) <= reservation.at_s
            )
        ):
            kept.append(view)
            continue
        small = {size: time for size, time in view.curve.times.items() if size <= spare}
        if least in small:
            spare -= max(small)
            kept.append(replace(view, curve=SpeedCurve(small, view.curve.untried & small.keys())))
        else:
            out.add(view.id)
    return kept, frozenset(out)


def reserve_kind(
    snapshot: Snapshot, blocking: Sequence[Job], beliefs: Mapping[str, Belief], quotas: Mapping[str, int] = NO_QUOTAS
) -> tuple[Reservation, str] | None:
    """The reservation of the first job that fits on no kind next to those ``blocking`` it, and the kind."""
    for view in sorted(snapshot.jobs, key=lambda view: -view.spec.priority):
        if view.workers or any(_least_on(view, kind) <= snapshot.num_of_kind(kind) for kind, _ in view.curves):
            continue
        found = []
        for kind, _ in view.curves:
            there = [job for job in blocking if snapshot.cluster.kind_of(job.wanted) == kind]
            num_all, num_free = snapshot.cluster.by_kind[kind].num_devices, snapshot.num_of_kind(kind)
            elsewhere = [job for job in blocking if job not in there and job.spec.user == view.spec.user]
            left = {user: most - sum(len(job.wanted) for job in elsewhere) for user, most in quotas.items()}
            one = find_reservation([view], there, beliefs, num_free, num_all, snapshot.now_s, left)
            if one is not None:
                found.append((one, kind))
        if found:
            return min(found, key=lambda pair: pair[0].at_s)
    return None


def held_back_on(
    snapshot: Snapshot, reservation: Reservation, kind: str, beliefs: Mapping[str, Belief]
) -> tuple[list[JobView], frozenset[str]]:
    """The views without the options that would delay the job with the reservation; and the jobs left without any."""
    part = snapshot.of_kind(kind, snapshot.jobs)
    num_all = snapshot.cluster.by_kind[kind].num_devices
    kept_there, _ = held_back(part.jobs, reservation, beliefs, num_all, snapshot.now_s)
    curve_there = {view.id: view.curve for view in kept_there}
    kept, out = [], set()
    for view in snapshot.jobs:
        if view.workers and view.kind != kind:
            kept.append(view)  # its devices are of another kind
            continue
        curves = tuple(
            (other, curve_there[view.id] if other == kind else curve)
            for other, curve in view.curves
            if other != kind or view.id in curve_there
        )
        if not curves:
            out.add(view.id)
        else:
            kept.append(view if curves == view.curves else replace(view, curves=curves, curve=curves[0][1]))
    return kept, frozenset(out)


def _least_on(view: JobView, kind: str) -> float:
    """The fewest workers it can run with on this kind."""
    curve = dict(view.curves)[kind]
    return min((size for size in curve.sizes if size >= view.spec.min_workers), default=float("inf"))


def queue_places(
    jobs: Iterable[Job],
    assigned: Mapping[str, Sequence[int]],
    beliefs: Mapping[str, Belief],
    num_devices: int,
    now_s: float,
) -> dict[str, QueuePlace]:
    """Where each job stands that got no devices, if all started in order at their smallest size."""
    jobs = list(jobs)
    waiting = [job for job in jobs if job.id not in assigned]
    if not waiting:
        return {}
    can_stop = {name for name in assigned if (belief := beliefs.get(name)) is not None and belief.can_stop}
    movable = [job.spec.priority for job in jobs if job.id in can_stop]
    placed = [(job, assigned[job.id]) for job in jobs if job.id in assigned]
    ends = [(end_s, num, known) for end_s, num, known, _ in _ends(placed, beliefs, now_s)]  # sorted: a heap
    free = num_devices - sum(num for _, num, _ in ends)
    at_s, is_certain = now_s, True
    places: dict[str, QueuePlace] = {}
    for position, job in enumerate(sorted(waiting, key=lambda job: (-job.spec.priority, job.number)), start=1):
        least = _least(job.spec, num_devices)
        if not least:
            places[job.id] = QueuePlace(position, None, is_certain=False)
            continue
        while free < least and ends:
            end_s, num, known = heapq.heappop(ends)
            at_s, free, is_certain = max(at_s, end_s), free + num, is_certain and known
        # It outranks a job that was left alone, but only because that one has just been started or resized.
        may_preempt = at_s > now_s and any(priority < job.spec.priority for priority in movable)
        is_certain &= not may_preempt
        if free < least:
            places[job.id] = QueuePlace(position, None, is_certain=False)
            continue
        expected_s = round(at_s / _ROUNDED_TO_S) * _ROUNDED_TO_S
        places[job.id] = QueuePlace(position, expected_s, is_certain, may_preempt)
        free -= least
        end_s, known = _end(beliefs.get(job.id), least, at_s)
        heapq.heappush(ends, (end_s, least, known))
    return places


def _least(spec: JobSpec, num_devices: int) -> int:
    """The fewest workers the job can run with; 0 if the cluster is too small."""
    return next(iter(spec.allowed_sizes(num_devices)), 0)


def _ends(
    placed: Iterable[tuple[Job, Sequence[int]]], beliefs: Mapping[str, Belief], now_s: float
) -> list[tuple[float, int, bool, list[str]]]:
    """When devices become free, how many, whether that is known, and of which jobs; both jobs of a pair together."""
    by_devices: dict[tuple[int, ...], tuple[float, bool, list[str]]] = {}
    for job, devices in placed:
        if devices:
            belief = beliefs.get(job.id)
            end_s, known = _end(belief, len(devices), now_s)
            if belief is not None and job.devices == tuple(devices):
                end_s -= min(now_s - job.changed_s, belief.restart_s)  # that much of its start is over
            before_s, before_known, names = by_devices.get(tuple(devices), (0.0, True, []))
            by_devices[tuple(devices)] = (max(end_s, before_s), known and before_known, [*names, job.id])
    found = [(end_s, len(devices), known, names) for devices, (end_s, known, names) in by_devices.items()]
    return sorted(found, key=lambda one: one[:3])


def _end(belief: Belief | None, num_workers: int, from_s: float) -> tuple[float, bool]:
    """The end of a job that is started at that time."""
    if belief is None:
        return from_s, False
    curve = belief.curve
    size = num_workers if num_workers in curve.times else curve.sizes[0]
    return from_s + _length_s(belief, num_workers), belief.is_length_known and size not in curve.untried


def _length_s(belief: Belief, num_workers: int) -> float:
    times = belief.curve.times
    step = times.get(num_workers) or times[belief.curve.sizes[0]]
    return belief.restart_s + belief.remaining_steps * step.step_s
