"""The reservation for the head of the queue in a cluster of several device kinds: on the kind where it can start first.

The same rules as in :mod:`weft.control.queue_order`, applied to one kind.  Jobs that would delay the head of the queue
there may still start on other kinds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from weft.control.queue_order import Prospect, Reservation, find_reservation, held_back
from weft.control.state import Job
from weft.core.snapshot import JobView, Snapshot


def reserve_kind(
    snapshot: Snapshot, blocking: Sequence[Job], beliefs: Mapping[str, Prospect]
) -> tuple[Reservation, str] | None:
    """The reservation of the first job that fits on no kind next to those ``blocking`` it, and the kind."""
    for view in sorted(snapshot.jobs, key=lambda view: -view.spec.priority):
        if view.workers or any(_least(view, kind) <= snapshot.num_of_kind(kind) for kind, _ in view.curves):
            continue
        found = []
        for kind, _ in view.curves:
            there = [job for job in blocking if snapshot.cluster.kind_of(job.wanted) == kind]
            num_all = snapshot.cluster.by_kind[kind].num_devices
            one = find_reservation([view], there, beliefs, snapshot.num_of_kind(kind), num_all, snapshot.now_s)
            if one is not None:
                found.append((one, kind))
        if found:
            return min(found, key=lambda pair: pair[0].at_s)
    return None


def held_back_on(
    snapshot: Snapshot, reservation: Reservation, kind: str, beliefs: Mapping[str, Prospect]
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


def _least(view: JobView, kind: str) -> float:
    """The fewest workers it can run with on this kind."""
    curve = dict(view.curves)[kind]
    return min((size for size in curve.sizes if size >= view.spec.min_workers), default=float("inf"))
