"""One decision: state and beliefs -> snapshot -> policy -> allocation -> placement -> ``DevicesAssigned``.

The controller and the simulator both decide here, and nowhere else.  Data in, data out: no clock, no I/O.  They differ
in where beliefs come from (reports of real workers, or a simulated job's profile) and in which jobs must not be
touched; both are inputs.

[Note: decided counts as done]
A decision that has not been carried out yet (a job still stopping, or waiting for devices) counts as if it were: a
job's ``workers`` and ``partner`` are those of the last decision, not those it has at the moment.  Otherwise the next
decision would see a job that is being resized at its old size, and reverse the resize.

[Note: jobs that must not be touched]
They keep exactly what the last decision gave them, including partner and role.  The policy sees neither them nor their
devices, so that it cannot take anything from them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Protocol

from weft.control.draft import altered
from weft.control.queue_order import (
    NO_QUOTAS,
    Reservation,
    due_first_starts,
    find_reservation,
    held_back,
    held_back_on,
    reserve_kind,
)
from weft.control.state import Job, State
from weft.core.events import DevicesAssigned
from weft.core.snapshot import Allocation, JobView, Snapshot
from weft.core.speed import SpeedCurve
from weft.elastic.placement import Devices, Unit, place


@dataclass(slots=True)
class Belief:
    """Estimates about a job, beyond its state."""

    curve: SpeedCurve
    remaining_steps: float
    restart_s: float
    can_share: bool = True
    """Whether enough is known about the job to predict its speed in a pair."""
    is_length_known: bool = True
    """Whether ``remaining_steps`` follows from a declared length; otherwise it is a guess."""
    can_stop: bool = True
    """Whether the job is known to resume after a stop."""
    curves: Mapping[str, SpeedCurve] = field(default_factory=dict)
    """In a cluster of several device kinds: the speed on each kind it can run on.  ``curve`` is then the one on its
    current kind or, while it waits, on the kind where it is fastest."""


@dataclass(frozen=True, slots=True)
class SharingTerms:
    """Conditions for sharing; none if devices are not shared."""

    handover_s: float
    apart: frozenset[frozenset[str]] = frozenset()
    """Pairs that must not share."""


@dataclass(frozen=True, slots=True)
class DecisionResult:
    """One decision, whether or not it changes anything."""

    snapshot: Snapshot
    allocation: Allocation
    untouched: frozenset[str]
    """Jobs that keep what they have, regardless of the policy."""
    event: DevicesAssigned
    changed: frozenset[str]
    """Jobs for which ``event`` differs from the last decision."""
    reservation: Reservation | None = None
    """Devices kept for the job at the head of the queue."""
    held_back: frozenset[str] = frozenset()
    """Jobs that were not shown to the policy, since they would delay the one with the reservation."""


class Decider(Protocol):
    """The part of a policy that a decision needs."""

    def decide(self, snapshot: Snapshot) -> Allocation: ...


def decide(
    state: State,
    beliefs: Mapping[str, Belief],
    policy: Decider,
    now_s: float,
    *,
    untouchable: Set[str] = frozenset(),
    quotas: Mapping[str, int] = NO_QUOTAS,
    sharing: SharingTerms | None = None,
) -> DecisionResult:
    """Which job gets which devices from now on.

    ``beliefs`` are needed for every active job that is neither canceled nor in ``untouchable``; those of untouchable
    jobs tell when the job at the head of the queue can start.
    """
    jobs = state.jobs.active
    if any(job.is_cancelled for job in jobs.values()):
        jobs = {name: job for name, job in jobs.items() if not job.is_cancelled}
    fixed = _with_partners(jobs, untouchable) if untouchable else frozenset()
    snapshot = _snapshot(state, jobs, beliefs, now_s, fixed, quotas, sharing)
    reservation, out = None, frozenset[str]()
    if fixed:
        blocking = [jobs[name] for name in fixed]
        reservation, kept, out = _reserved(snapshot, blocking, beliefs, quotas)
        if reservation:
            snapshot = replace(snapshot, jobs=tuple(kept))
    allocation = policy.decide(snapshot) if snapshot.jobs else Allocation({})
    if reservation is None:
        reservation, kept, out = _overtaken(snapshot, allocation, jobs, fixed, beliefs, quotas)
        if reservation:
            snapshot = replace(snapshot, jobs=tuple(kept))
            allocation = policy.decide(snapshot)
    if allocation.kept:
        fixed |= _with_partners(jobs, allocation.kept - _on_closed_nodes(state, jobs))
    event, changed = _assignment(state, jobs, allocation, fixed, now_s)
    return DecisionResult(snapshot, allocation, fixed, event, changed, reservation, out)


def _reserved(
    snapshot: Snapshot, blocking: Sequence[Job], beliefs: Mapping[str, Belief], quotas: Mapping[str, int]
) -> tuple[Reservation | None, Sequence[JobView], frozenset[str]]:
    """Devices kept for the head of the queue, the jobs that the policy sees, and those that it does not see."""
    cluster, now_s = snapshot.cluster, snapshot.now_s
    if cluster.is_mixed:
        found = reserve_kind(snapshot, blocking, beliefs, quotas)
        return (found[0], *held_back_on(snapshot, *found, beliefs)) if found else (None, snapshot.jobs, frozenset())
    num_all = cluster.num_devices
    reservation = find_reservation(snapshot.jobs, blocking, beliefs, snapshot.num_devices, num_all, now_s, quotas)
    if reservation is None:
        return None, snapshot.jobs, frozenset()
    return (reservation, *held_back(snapshot.jobs, reservation, beliefs, num_all, now_s))


def _overtaken(
    snapshot: Snapshot,
    allocation: Allocation,
    jobs: Mapping[str, Job],
    fixed: frozenset[str],
    beliefs: Mapping[str, Belief],
    quotas: Mapping[str, int],
) -> tuple[Reservation | None, Sequence[JobView], frozenset[str]]:
    """The same, if what ``allocation`` would start for good leaves no room for a job that it passes over.

    From the next decision on, these starts would be a reason to keep devices for it: later ones are too late then.
    """
    none: tuple[None, Sequence[JobView], frozenset[str]] = (None, snapshot.jobs, frozenset())
    workers = allocation.workers
    starting = {name for name, num in workers.items() if num and not beliefs[name].can_stop and not jobs[name].wanted}
    if not starting or snapshot.cluster.is_mixed:
        return none
    waiting = [view for view in snapshot.jobs if not view.workers]
    ahead: list[str] = []
    for view in sorted(waiting, key=lambda view: -view.spec.priority):
        if view.id in starting:
            ahead.append(view.id)
        elif not workers.get(view.id):
            break
    if len(ahead) == len(starting):
        return none  # the others come later
    taken = {device for name in fixed for device in jobs[name].wanted}
    free = iter([device for device in range(sum(snapshot.cluster.devices_by_node)) if device not in taken])
    # Where they will be does not matter here, only how many devices they will have.
    started = [altered(jobs[name], {"wanted": tuple(islice(free, workers[name]))}) for name in ahead]
    num_free = snapshot.num_devices - sum(len(job.wanted) for job in started)
    blocking, num_all = [*(jobs[name] for name in fixed), *started], snapshot.cluster.num_devices
    reservation = find_reservation([view], blocking, beliefs, num_free, num_all, snapshot.now_s, quotas)
    if reservation is None:
        return none
    return (reservation, *held_back(snapshot.jobs, reservation, beliefs, num_all, snapshot.now_s))


def outnumbers(state: State) -> bool:
    """Whether there are too few devices to give every job its minimum number of workers."""
    least = sum([job.spec.min_workers for job in state.jobs.active.values() if not job.is_cancelled])
    return least > state.cluster.num_devices


def _devices_on_closed_nodes(state: State) -> frozenset[int]:
    cluster = state.cluster
    return frozenset(device for node in cluster.closed_nodes for device in cluster.devices_of(node))


def _on_closed_nodes(state: State, jobs: Mapping[str, Job]) -> frozenset[str]:
    """Jobs that must move even if nothing else about them changes."""
    closed = _devices_on_closed_nodes(state)
    return frozenset(name for name, job in jobs.items() if closed and not closed.isdisjoint(job.wanted))


def _with_partners(jobs: Mapping[str, Job], names: Set[str]) -> frozenset[str]:
    """The two jobs of a pair can only stay as they are together."""
    active = frozenset(name for name in names if name in jobs)
    return active | {other for name in active if (other := jobs[name].wanted_partner) is not None}


def _snapshot(
    state: State,
    jobs: Mapping[str, Job],
    beliefs: Mapping[str, Belief],
    now_s: float,
    fixed: frozenset[str],
    quotas: Mapping[str, int],
    sharing: SharingTerms | None,
) -> Snapshot:
    views = []
    cluster, is_mixed = state.cluster, state.cluster.is_mixed
    due = due_first_starts(jobs.values(), cluster.num_devices)
    for name, job in jobs.items():
        if name in fixed:
            continue
        belief = beliefs[name]
        devices, wanted = job.devices, job.wanted
        since_s = now_s - job.changed_s if now_s > job.changed_s else 0.0
        views.append(
            JobView(
                job.spec,
                belief.curve,
                belief.remaining_steps,
                belief.restart_s,
                len(wanted),
                job.wanted_partner,
                job.attained_device_s + len(devices) * since_s,
                0.0 if wanted or devices else since_s,
                since_s if wanted and wanted == devices else 0.0,
                job.num_restarts,
                name in due,
                belief.is_length_known,
                cluster.kind_of(wanted) if is_mixed else "",
                tuple(belief.curves.items()) if is_mixed else (),
            )
        )
    # The policy does not see devices on closed nodes, even if a job still uses them.
    closed = _devices_on_closed_nodes(state)
    held_devices = {device for name in fixed for device in jobs[name].wanted} - closed if fixed else set()
    num_held = len(held_devices)
    held_by_kind = {}
    if is_mixed:
        held_by_kind = {kind: len(held_devices & devices) for kind, devices in cluster.devices_by_kind.items()}
    if fixed and quotas:
        held = [(jobs[name].spec.user, len(jobs[name].wanted)) for name in fixed]
        quotas = {
            user: max(most - sum(num for owner, num in held if owner == user), 0) for user, most in quotas.items()
        }
    if sharing is None:
        return Snapshot(now_s, cluster, tuple(views), quotas, num_held=num_held, held_by_kind=held_by_kind)
    # While there are enough devices for every job, pairs may continue but no new ones are formed.
    may_begin = outnumbers(state)
    alone = frozenset(view.id for view in views if not beliefs[view.id].can_share or not (may_begin or view.partner))
    return Snapshot(
        now_s, cluster, tuple(views), quotas, True, sharing.handover_s, alone, sharing.apart, num_held, held_by_kind
    )


def _assignment(
    state: State, jobs: Mapping[str, Job], allocation: Allocation, fixed: frozenset[str], at_s: float
) -> tuple[DevicesAssigned, frozenset[str]]:
    """The event that puts ``allocation`` into effect, and the jobs that it changes."""
    partners, fillers, workers = allocation.partners(), allocation.fillers, allocation.workers
    if fixed:
        pairs = {name: other for name in fixed if (other := jobs[name].wanted_partner) is not None}
        partners = {name: other for name, other in partners.items() if name not in fixed} | pairs
        fillers = (fillers - fixed) | {name for name in fixed if jobs[name].wanted_fills}
        workers = {**workers, **{name: len(jobs[name].wanted) for name in fixed}}
    changed: set[str] = set()
    closed = _devices_on_closed_nodes(state)
    devices: dict[str, Devices] = {}
    kinds, cluster = allocation.kinds, state.cluster
    for name, job in jobs.items():
        wanted = job.wanted
        if wanted:
            devices[name] = wanted
        elif name not in workers:
            continue  # it keeps waiting
        if (
            len(wanted) != workers.get(name, 0)
            or (name in kinds and name not in fixed and kinds[name] != cluster.kind_of(wanted))
            or partners.get(name) != job.wanted_partner
            or (name in fillers) != job.wanted_fills
            or (name not in fixed and not closed.isdisjoint(wanted))
        ):
            changed.add(name)
    # If every job keeps its size and partner, placement would leave all of them where they are.
    if changed:
        devices = _placed(state, jobs, workers, partners, fixed, kinds)
        changed |= {name for name, job in jobs.items() if devices.get(name, ()) != job.wanted}
    return DevicesAssigned(at_s, devices, partners, fillers), frozenset(changed)


def _placed(
    state: State,
    jobs: Mapping[str, Job],
    workers: Mapping[str, int],
    partners: Mapping[str, str],
    fixed: frozenset[str],
    kinds: Mapping[str, str],
) -> dict[str, Devices]:
    """Devices for every job that gets some; those in ``fixed`` stay where they are."""
    staying = {name: job.wanted for name, job in jobs.items() if name in fixed}
    units: list[Unit] = []
    for name, job in jobs.items():
        size = workers.get(name, 0)
        if name in fixed or not size:
            continue
        partner = partners.get(name)
        if partner is None:
            units.append(Unit((name,), size, kinds.get(name, "")))
        elif job.number < jobs[partner].number:
            units.append(Unit((name, partner), size, kinds.get(name, "")))
    current = {name: job.wanted for name, job in jobs.items() if job.wanted and name not in fixed}
    taken = frozenset(device for devices in staying.values() for device in devices)
    return staying | place(state.cluster, units, current, taken=taken)
