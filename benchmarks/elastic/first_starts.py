"""How long jobs wait for their first start: short ones against their length, rigid ones against a backfilled queue."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from weft.core.cluster import Cluster
from weft.elastic.rules import SHORT_S
from weft.sim.replay_options import SimulationOptions
from weft.sim.result import SimulationResult
from weft.sim.workload import TrueJob, Workload

PATIENCE = 10.0
GRACE_S = 300.0
"""A job shorter than a minute should wait at most ten times its length plus this."""
RIGID_MARGIN = 1.1
MAX_NAMED = 10
"""Late jobs listed by name."""


def length_s(job: TrueJob, cluster: Cluster) -> float:
    """How long the job runs at the size it requests, without its start."""
    return job.total_steps * job.profile.step_time(cluster.packed_shape(job.spec.requested_workers)).step_s


def start_row(workload: Workload, cluster: Cluster, result: SimulationResult) -> dict[str, Any]:
    """The longest wait of a short job as a share of its limit, and the jobs that waited longer than that."""
    shares = {}
    for job, run in zip(workload.jobs, result.jobs, strict=True):
        if (seconds := length_s(job, cluster)) < SHORT_S:
            shares[job.spec.id] = (run.started_s - run.submitted_s) / (PATIENCE * seconds + GRACE_S)
    return {
        "workload": workload.name,
        "policy": result.policy,
        "short_jobs": len(shares),
        "worst_wait": round(max(shares.values(), default=0.0), 4),
        "late_short_jobs": _late(shares),
    }


def rigid_row(
    workload: Workload, cluster: Cluster, result: SimulationResult, options: SimulationOptions
) -> dict[str, Any]:
    """Jobs with only one size: their longest wait as a share of its limit, and those that waited longer than that.

    The limit is the wait under FIFO with backfill, plus a tenth.  The next decision, for which every job waits, counts
    on both sides.
    """
    fifo_s = backfilled_starts_s(workload, cluster, options)
    shares = {}
    for job, run, start_s in zip(workload.jobs, result.jobs, fifo_s, strict=True):
        if len(job.spec.allowed_sizes(cluster.num_devices)) == 1 or len(job.profile.sizes) == 1:
            limit_s = RIGID_MARGIN * (start_s - run.submitted_s + options.decision_interval_s)
            shares[job.spec.id] = (run.started_s - run.submitted_s) / limit_s
    return {
        "rigid_jobs": len(shares),
        "worst_rigid_wait": round(max(shares.values(), default=0.0), 4),
        "late_rigid_jobs": _late(shares),
    }


def _late(shares: Mapping[str, float]) -> str:
    """The names of the jobs that waited longer than their limit, the latest first; "none" if there are none."""
    late = sorted((name for name, share in shares.items() if share > 1.0), key=lambda name: -shares[name])
    more = f" and {len(late) - MAX_NAMED} more" if len(late) > MAX_NAMED else ""
    return ", ".join(late[:MAX_NAMED]) + more if late else "none"


def backfilled_starts_s(workload: Workload, cluster: Cluster, options: SimulationOptions) -> list[float]:
    """First in, first out at requested sizes; a later job starts early where it does not delay the first in line.

    Lengths are known and jobs start at once, not at the next decision: a queue that is hard to beat.
    """
    jobs = [
        (job.spec.submitted_s, job.spec.requested_workers, options.restart_s + length_s(job, cluster))
        for job in workload.jobs
    ]
    starts_s = [0.0] * len(jobs)
    running: list[tuple[float, int]] = []
    waiting: list[int] = []
    upcoming = 0
    while upcoming < len(jobs) or waiting:
        arrival_s = jobs[upcoming][0] if upcoming < len(jobs) else float("inf")
        end_s = min(running)[0] if running and waiting else float("inf")
        now_s = min(arrival_s, end_s)
        running = [(until_s, num) for until_s, num in running if until_s > now_s]
        while upcoming < len(jobs) and jobs[upcoming][0] <= now_s:
            waiting.append(upcoming)
            upcoming += 1
        for number in _startable(jobs, waiting, running, cluster.num_devices, now_s):
            waiting.remove(number)
            starts_s[number] = now_s
    return starts_s


def _startable(
    jobs: Sequence[tuple[float, int, float]],
    waiting: Sequence[int],
    running: list[tuple[float, int]],
    num_devices: int,
    now_s: float,
) -> list[int]:
    """The waiting jobs that start now; they are added to ``running``."""
    free = num_devices - sum(num for _, num in running)
    found: list[int] = []
    reserved_s, spare = float("inf"), 0
    for number in waiting:
        _, size, seconds = jobs[number]
        fits_beside = now_s + seconds <= reserved_s or size <= spare
        if size <= free and fits_beside:
            if now_s + seconds > reserved_s:
                spare -= size
            free -= size
            running.append((now_s + seconds, size))
            found.append(number)
        elif reserved_s == float("inf"):
            later = free
            for until_s, num in sorted(running):
                later += num
                if later >= size:
                    reserved_s, spare = until_s, later - size
                    break
    return found
