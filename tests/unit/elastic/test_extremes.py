"""Any job that can be submitted, at the ends of every documented range, leaves the queue working under every policy."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from test_every_policy import check_allocation

from weft.core.cluster import Cluster
from weft.core.job import JobSpec
from weft.core.reason import in_words
from weft.core.snapshot import Allocation, JobView, Snapshot
from weft.core.speed import MAX_STEP_S, MIN_STEP_S, SpeedCurve, StepTime
from weft.core.submission import MAX_PRIORITY, MAX_TOTAL_STEPS, MAX_WEIGHT, MAX_WORKERS
from weft.elastic import POLICIES, Rules, policy_named
from weft.elastic.menu import packs_well
from weft.elastic.policy import BasePolicy
from weft.elastic.queues import FixedSizePolicy

PRIORITIES = (-MAX_PRIORITY, -1000, -320, -1, 0, 1, 307, 308, 309, 400, MAX_PRIORITY)
WEIGHTS = (1 / MAX_WEIGHT, 1e-3, 1.0, 1e3, MAX_WEIGHT)
STEPS = (1.0, 20.0, 1e6, float(MAX_TOTAL_STEPS))
STEP_TIMES_S = (MIN_STEP_S, 0.01, 1.0, MAX_STEP_S)
TIMES_S = (0.0, 1.0, 30.0, 1e5, 1e9)
WORKERS = (1, 2, 3, 8, 64, MAX_WORKERS)


@st.composite
def extreme_jobs(draw: st.DrawFn, index: int, num_devices: int) -> JobView:
    low, high = sorted((draw(st.sampled_from(WORKERS)), draw(st.sampled_from(WORKERS))))
    spec = JobSpec(
        f"job{index}",
        submitted_s=float(index),
        min_workers=low,
        max_workers=high,
        requested_workers=draw(st.sampled_from((low, high))),
        user=draw(st.sampled_from(("ada", ""))),
        weight=draw(st.sampled_from(WEIGHTS)),
        priority=draw(st.sampled_from(PRIORITIES)),
    )
    sizes = spec.allowed_sizes(num_devices) or (low,)
    fast_s, scaling = draw(st.sampled_from(STEP_TIMES_S)), draw(st.sampled_from((-0.5, 0.0, 0.5, 1.0)))
    times_s = {size: min(max(fast_s / size**scaling, MIN_STEP_S), MAX_STEP_S) for size in sizes}
    exposed = draw(st.sampled_from((0.0, 0.5, 1.0)))
    workers = draw(st.sampled_from((0, 0, sizes[0], sizes[-1])))
    return JobView(
        spec,
        SpeedCurve({size: StepTime(step_s, exposed * step_s) for size, step_s in times_s.items()}),
        remaining_steps=draw(st.sampled_from(STEPS)),
        restart_s=draw(st.sampled_from(TIMES_S)),
        workers=workers,
        attained_device_s=draw(st.sampled_from(TIMES_S)),
        waited_s=0.0 if workers else draw(st.sampled_from(TIMES_S)),
        settled_s=draw(st.sampled_from(TIMES_S)) if workers else 0.0,
    )


@st.composite
def extreme_queues(draw: st.DrawFn) -> Snapshot:
    cluster = Cluster.uniform(draw(st.sampled_from((1, 2, 16))), draw(st.sampled_from((1, 3, 8))))
    jobs, held = [], 0
    for index in range(draw(st.integers(1, 12))):
        job = draw(extreme_jobs(index, cluster.num_devices))
        if held + job.workers > cluster.num_devices:
            job = replace(job, workers=0, settled_s=0.0)
        held += job.workers
        jobs.append(job)
    quotas = {"ada": draw(st.integers(1, cluster.num_devices))} if draw(st.booleans()) else {}
    return Snapshot(1e9, cluster, tuple(jobs), quotas, draw(st.booleans()), draw(st.sampled_from((0.0, 0.001, 10.0))))


def needed(policy: BasePolicy, snapshot: Snapshot, job: JobView) -> int | None:
    """Devices without which a waiting job cannot start under this policy; None if this cluster is too small for it."""
    sizes = [size for size in job.spec.allowed_sizes(snapshot.cluster.num_devices) if size in job.curve.times]
    if not sizes:
        return None
    if isinstance(policy, FixedSizePolicy):
        wanted = min(job.spec.requested_workers, snapshot.quotas.get(job.spec.user, MAX_WORKERS))
        return max((size for size in sizes if size <= wanted), default=sizes[0])
    node = max(snapshot.cluster.devices_by_node)
    return ([size for size in sizes if packs_well(size, node)] or sizes)[0]


def check_nobody_waits_beside_idle_devices(policy: BasePolicy, snapshot: Snapshot, allocation: Allocation) -> None:
    idle = snapshot.cluster.num_devices - allocation.num_devices()
    held = sum(allocation.workers.get(job.id, 0) for job in snapshot.jobs if job.spec.user == "ada")
    waiting = [job for job in snapshot.jobs if not allocation.workers.get(job.id)]
    sizes = {job.id: size for job in waiting if (size := needed(policy, snapshot, job)) is not None}
    if policy.name == "fifo" and any(size > idle for size in sizes.values()):
        return  # no job overtakes one that does not fit
    for job in waiting:
        room = min(idle, snapshot.quotas["ada"] - held) if job.spec.user in snapshot.quotas else idle
        assert sizes.get(job.id, room + 1) > room, f"{job.id} waits while {room} devices are free for it"


@pytest.mark.parametrize("hold_s", [0.0, 10.0])
@pytest.mark.parametrize("name", POLICIES)
@settings(max_examples=40, deadline=None)
@given(snapshot=extreme_queues())
def test_no_legal_job_stops_the_queue(name: str, hold_s: float, snapshot: Snapshot) -> None:
    policy = policy_named(name, Rules(hold_s=hold_s))
    allocation = policy.decide(snapshot)
    check_allocation(snapshot, allocation)
    assert allocation.valid_until_s > snapshot.now_s
    assert not math.isnan(allocation.valid_until_s)
    check_nobody_waits_beside_idle_devices(policy, snapshot, allocation)
    for job in snapshot.jobs:
        assert in_words(policy.explain(snapshot, allocation, job.id))


@pytest.mark.parametrize("name", POLICIES)
@settings(max_examples=25, deadline=None)
@given(
    high=st.integers(-MAX_PRIORITY + 1, MAX_PRIORITY),
    below=st.integers(1, MAX_PRIORITY),
    weight=st.sampled_from(WEIGHTS),
)
@example(high=400, below=400, weight=1.0)
@example(high=-1000, below=1, weight=1.0)
def test_a_higher_priority_comes_first_even_with_extreme_numbers(
    name: str, high: int, below: int, weight: float
) -> None:
    """One device, many short and heavy jobs of a lower priority, one long and light job of a higher one."""
    curve = SpeedCurve({1: StepTime(1.0)})
    low = max(high - below, -MAX_PRIORITY)
    others = tuple(JobView(JobSpec(f"low{i}", float(i), priority=low, weight=weight), curve, 10.0) for i in range(30))
    urgent = JobView(JobSpec("urgent", 99.0, priority=high, weight=1 / MAX_WEIGHT), curve, 1e6, restart_s=30.0)
    snapshot = Snapshot(100.0, Cluster.uniform(1, 1), (*others, urgent))
    assert policy_named(name).decide(snapshot).workers == {"urgent": 1}


@pytest.mark.parametrize("name", [name for name in POLICIES if name not in ("equal", "fifo", "srtf", "tiresias")])
def test_devices_a_higher_priority_cannot_use_go_to_the_next(name: str) -> None:
    curve = SpeedCurve({size: StepTime(1.0 / size) for size in range(1, 10)})
    jobs = [JobView(JobSpec(f"p{one}", 0.0, 1, 4, 4, priority=one), curve, 1e4) for one in (-7, 0, 400)]
    workers = policy_named(name).decide(Snapshot(0.0, Cluster.uniform(9, 1), tuple(jobs))).workers
    assert workers == {"p400": 4, "p0": 4, "p-7": 1}


@pytest.mark.parametrize("name", POLICIES)
def test_a_job_just_resized_beyond_its_quota_runs_smaller_instead_of_not_at_all(name: str) -> None:
    curve = SpeedCurve({size: StepTime(1.0 / size) for size in range(1, 9)})
    job = JobView(JobSpec("a", 0.0, 1, 8, 4, user="ada"), curve, 1e4, workers=8, settled_s=1.0)
    snapshot = Snapshot(10.0, Cluster.uniform(1, 8), (job,), {"ada": 4})
    assert 1 <= policy_named(name, Rules(hold_s=10.0)).decide(snapshot).workers["a"] <= 4
