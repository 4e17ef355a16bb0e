"""Clusters of several device kinds, for policies that support only one: one kind at a time, the fastest first.

On each kind, a policy decides as if there were no other devices, about the jobs that run there and those that do not
run.  A job that gets nothing on one kind is considered on the next, so a running job stays on its kind until it is
stopped.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import replace
from typing import Protocol

from weft.core.snapshot import Allocation, JobView, Snapshot


class KindDecider(Protocol):
    """A policy for the devices of one kind."""

    def decide(self, snapshot: Snapshot) -> Allocation: ...


def decide_in_turn(
    deciders: Mapping[str, KindDecider], snapshot: Snapshot, homes: Mapping[str, str] | None = None
) -> Allocation:
    """The allocation by one decider per kind.  ``homes``: the kind on which a job must be considered first, if any."""
    if homes is None:
        homes = {job.id: job.kind for job in snapshot.jobs if job.workers}
    workers: dict[str, int] = {}
    kinds: dict[str, str] = {}
    pairs: tuple[tuple[str, str], ...] = ()
    fillers: frozenset[str] = frozenset()
    valid_until_s = float("inf")
    quotas = dict(snapshot.quotas)
    seen: set[str] = set()
    for kind in kinds_by_speed(snapshot):
        seen.add(kind)
        here = [job for job in snapshot.jobs if job.id not in kinds and homes.get(job.id, kind) in seen]
        part = replace(snapshot.of_kind(kind, here), quotas=quotas)
        found = deciders[kind].decide(part)
        for job in part.jobs:
            if num := found.workers.get(job.id, 0):
                workers[job.id], kinds[job.id] = num, kind
                if job.spec.user in quotas:
                    quotas[job.spec.user] -= num
        pairs += found.pairs
        fillers |= found.fillers
        valid_until_s = min(valid_until_s, found.valid_until_s)
    return Allocation(workers, pairs, fillers, valid_until_s, kinds=kinds)


def kinds_by_speed(snapshot: Snapshot) -> list[str]:
    """The kinds with devices to assign, the fastest first by the median job; equal ones in the cluster's order."""
    names = snapshot.cluster.kind_names
    speeds = {kind: relative_speed(snapshot.jobs, kind, names[0]) for kind in names if snapshot.num_of_kind(kind) > 0}
    return sorted(speeds, key=lambda kind: -speeds[kind])


def relative_speed(jobs: tuple[JobView, ...], kind: str, other: str) -> float:
    """How much faster ``kind`` is than ``other``, by the median of the jobs that can run on both; 1 without any."""
    ratios = []
    for job in jobs:
        curves = dict(job.curves)
        if kind in curves and other in curves:
            both = [size for size in curves[kind].sizes if size in curves[other].times]
            if both:
                ratios.append(curves[other].times[both[0]].step_s / curves[kind].times[both[0]].step_s)
    return statistics.median(ratios) if ratios else 1.0
