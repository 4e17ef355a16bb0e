"""What users are promised whichever policy they choose."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_snapshots import snapshots

from weft.core.cluster import Cluster
from weft.core.job import JobSpec
from weft.core.reason import NoRoom, in_words
from weft.core.snapshot import Allocation, JobView, Snapshot
from weft.core.speed import SpeedCurve, StepTime
from weft.elastic import POLICIES, Rules, policy_named
from weft.elastic.menu import packs_well
from weft.elastic.rules import SHORT_GRACE_S
from weft.errors import UsageError

CURVE = SpeedCurve({w: StepTime(1.0 / w + 0.05) for w in range(1, 17)})


def check_allocation(snapshot: Snapshot, allocation: Allocation) -> None:
    assert allocation.num_devices() <= snapshot.cluster.num_devices
    jobs = {job.id: job for job in snapshot.jobs}
    per_user: Counter[str] = Counter()
    for name, workers in allocation.workers.items():
        assert workers in jobs[name].spec.allowed_sizes(snapshot.cluster.num_devices)
        assert workers in jobs[name].curve.times
        per_user[jobs[name].spec.user] += workers
    for user, quota in snapshot.quotas.items():
        assert per_user[user] <= quota
    paired = [name for pair in allocation.pairs for name in pair]
    assert len(paired) == len(set(paired))
    for first, second in allocation.pairs:
        assert allocation.workers[first] == allocation.workers[second]


@pytest.mark.parametrize("name", POLICIES)
@settings(max_examples=60, deadline=None)
@given(snapshot=snapshots())
def test_no_policy_exceeds_the_cluster_or_a_jobs_limits(name: str, snapshot: Snapshot) -> None:
    check_allocation(snapshot, policy_named(name).decide(snapshot))


@pytest.mark.parametrize("name", ["balanced", "exact"])
@settings(max_examples=60, deadline=None)
@given(snapshot=snapshots(crossover=True))
def test_pairs_share_devices_and_keep_every_limit(name: str, snapshot: Snapshot) -> None:
    check_allocation(snapshot, policy_named(name).decide(snapshot))


@pytest.mark.parametrize("name", POLICIES)
@settings(max_examples=20, deadline=None)
@given(snapshot=snapshots(), other=snapshots())
def test_same_snapshot_same_answer_whatever_was_asked_before(name: str, snapshot: Snapshot, other: Snapshot) -> None:
    fresh, used = policy_named(name), policy_named(name)
    used.decide(other)
    assert used.decide(snapshot) == fresh.decide(snapshot)


@pytest.mark.parametrize("name", [name for name in POLICIES if name != "fifo"])
@settings(max_examples=40, deadline=None)
@given(snapshot=snapshots(), index=st.integers(0, 6))
def test_a_job_that_waited_too_long_gets_workers_next(name: str, snapshot: Snapshot, index: int) -> None:
    """The longest-waiting job runs as soon as it is overdue, whatever the policy prefers."""
    if not snapshot.jobs:
        return
    rules = Rules(aging_s=3600.0)
    # Below the grace after which short jobs come before all others.
    jobs = [replace(job, waited_s=min(job.waited_s, SHORT_GRACE_S - 1)) for job in snapshot.jobs]
    starved = jobs[index % len(jobs)]
    menu = [w for w in starved.spec.allowed_sizes(snapshot.cluster.num_devices) if w in starved.curve.times]
    if not menu:
        return
    spec = replace(starved.spec, user="nobody else", priority=-5, weight=0.01)
    jobs[index % len(jobs)] = replace(starved, spec=spec, workers=0, settled_s=0.0, waited_s=4000.0)
    allocation = policy_named(name, rules).decide(replace(snapshot, jobs=tuple(jobs)))
    assert allocation.workers[starved.id] in menu


@settings(max_examples=100, deadline=None)
@given(snapshot=snapshots(), aging_s=st.floats(0.0, 1e5))
def test_fifo_stops_no_running_job_for_another_however_long_that_one_waited(snapshot: Snapshot, aging_s: float) -> None:
    snapshot = replace(snapshot, quotas={})
    allocation = policy_named("fifo", Rules(aging_s=aging_s)).decide(snapshot)
    for job in snapshot.jobs:
        if job.workers:
            assert allocation.workers[job.id] >= job.workers


def test_fifo_lets_a_job_that_waited_too_long_in_before_those_of_higher_priority() -> None:
    """It does not fit next to the running one, and no job overtakes it while that one finishes."""
    running = JobView(JobSpec("running", 0.0, max_workers=3, requested_workers=3), CURVE, 100.0, workers=3)
    starved = JobView(JobSpec("starved", 1.0, max_workers=2, requested_workers=2), CURVE, 100.0, waited_s=1e5)
    favoured = JobView(JobSpec("favoured", 2.0, priority=1), CURVE, 100.0)
    snapshot = Snapshot(1e5, Cluster.uniform(1, 4), (running, starved, favoured))
    policy = policy_named("fifo", Rules(aging_s=3600.0))
    assert policy.decide(snapshot).workers == {"running": 3}
    later = replace(snapshot, jobs=(starved, favoured))
    assert policy.decide(later).workers == {"starved": 2, "favoured": 1}


def test_fifo_lets_other_users_pass_a_job_that_is_beyond_its_users_quota() -> None:
    running = JobView(JobSpec("running", 0.0, max_workers=2, requested_workers=2), CURVE, 100.0, workers=2)
    beyond = JobView(JobSpec("beyond", 1.0, 3, 3, 3, user="ana"), CURVE, 100.0)
    other = JobView(JobSpec("other", 2.0, user="bo"), CURVE, 100.0)
    snapshot = Snapshot(10.0, Cluster.uniform(1, 4), (running, beyond, other), quotas={"ana": 2})
    assert policy_named("fifo").decide(snapshot).workers == {"running": 2, "other": 1}


@pytest.mark.parametrize(("num_nodes", "per_node"), [(4, 3), (2, 5), (2, 6), (4, 4), (1, 12)])
def test_doubling_goes_on_whatever_the_number_of_devices_in_a_node(num_nodes: int, per_node: int) -> None:
    job = JobView(JobSpec("a", 0.0, max_workers=8), CURVE, 1000.0)
    snapshot = Snapshot(0.0, Cluster.uniform(num_nodes, per_node), (job,))
    assert policy_named("doubling").decide(snapshot).workers == {"a": 8}


@pytest.mark.parametrize("name", ["balanced", "exact", "doubling", "optimus", "afs", "equal"])
@pytest.mark.parametrize("per_node", [3, 5, 6, 7])
def test_a_job_that_scales_only_to_powers_of_two_grows_on_nodes_of_any_size(name: str, per_node: int) -> None:
    sizes = (1, 2, 4, 8, 16)
    curve = SpeedCurve({size: CURVE.times[size] for size in sizes})
    job = JobView(JobSpec("a", 0.0, max_workers=16, sizes=sizes), curve, 1000.0)
    snapshot = Snapshot(0.0, Cluster.uniform(2, per_node), (job,))
    assert policy_named(name).decide(snapshot).workers == {"a": 4 if per_node == 3 else 8}


def test_doubling_explains_a_size_with_the_next_power_of_two() -> None:
    policy = policy_named("doubling")
    jobs = tuple(JobView(JobSpec(name, 0.0, max_workers=16), CURVE, 1000.0) for name in ("a", "b"))
    snapshot = Snapshot(0.0, Cluster.uniform(1, 5), jobs)
    allocation = policy.decide(snapshot)
    assert allocation.workers == {"a": 2, "b": 2}
    assert policy.explain(snapshot, allocation, "a") == NoRoom(2, 4)


@pytest.mark.parametrize("name", POLICIES)
@settings(max_examples=30, deadline=None)
@given(snapshot=snapshots())
def test_rate_limit_leaves_a_freshly_started_job_alone(name: str, snapshot: Snapshot) -> None:
    """A job changed a moment ago keeps its workers, and those that run fit the cluster together."""
    if snapshot.quotas:
        return
    held = [job for job in snapshot.jobs if job.workers]
    policy = policy_named(name, Rules(hold_s=1e9))
    allocation = policy.decide(snapshot)
    aligned = name not in ("fifo", "srtf", "tiresias", "optimus")
    for job in held:
        menu = [w for w in job.spec.allowed_sizes(snapshot.cluster.num_devices) if w in job.curve.times]
        if aligned:
            node = max(snapshot.cluster.devices_by_node)
            menu = [size for size in menu if packs_well(size, node)] or menu
        if job.workers in menu:
            assert allocation.workers[job.id] == job.workers


@pytest.mark.parametrize("name", POLICIES)
def test_a_job_that_must_change_its_size_takes_nothing_from_one_that_was_just_started(name: str) -> None:
    """Two workers do not pack into nodes of three, so the third job would have to grow."""
    curve = SpeedCurve({size: StepTime(size**-0.5) for size in (1, 2, 3)})
    specs = (
        JobSpec("single", 0.0, 1, 1, 1),
        JobSpec("whole", 1.0, 3, 3, 3),
        JobSpec("odd", 2.0, 2, 3, 2),
    )
    jobs = tuple(JobView(spec, curve, 1.0, 0.0, workers) for spec, workers in zip(specs, (1, 3, 2), strict=True))
    snapshot = Snapshot(1e5, Cluster.uniform(2, 3), jobs)
    workers = policy_named(name, Rules(hold_s=1e9)).decide(snapshot).workers
    assert workers["single"] == 1
    assert workers["whole"] == 3


@pytest.mark.parametrize("name", ["fifo", "equal", "doubling", "optimus", "afs"])
@settings(max_examples=30, deadline=None)
@given(num_jobs=st.integers(1, 12), num_nodes=st.integers(1, 3))
def test_more_devices_never_leave_more_jobs_waiting(name: str, num_jobs: int, num_nodes: int) -> None:
    jobs = tuple(
        JobView(JobSpec(f"j{i}", float(i), max_workers=4, requested_workers=2), CURVE, 100.0 * (i + 1))
        for i in range(num_jobs)
    )
    small, large = (
        policy_named(name).decide(Snapshot(0.0, Cluster.uniform(nodes, 4), jobs))
        for nodes in (num_nodes, num_nodes + 1)
    )
    assert small.workers.keys() <= large.workers.keys()


@pytest.mark.parametrize("name", POLICIES)
def test_an_idle_cluster_is_used(name: str) -> None:
    jobs = tuple(JobView(JobSpec(f"j{i}", 0.0, max_workers=16, requested_workers=4), CURVE, 1000.0) for i in range(2))
    allocation = policy_named(name).decide(Snapshot(0.0, Cluster.uniform(4, 4), jobs))
    assert all(allocation.workers[job.id] >= 4 for job in jobs)


@pytest.mark.parametrize("name", POLICIES)
def test_every_decision_can_be_explained_in_a_sentence(name: str) -> None:
    jobs = tuple(
        JobView(JobSpec(f"j{i}", float(i), max_workers=4, requested_workers=4), CURVE, 100.0, workers=4 * (i == 0))
        for i in range(9)
    )
    snapshot = Snapshot(0.0, Cluster.uniform(1, 4), jobs)
    policy = policy_named(name)
    allocation = policy.decide(snapshot)
    for job in jobs:
        sentence = in_words(policy.explain(snapshot, allocation, job.id))
        waits = sentence.startswith(("waits", "gave up"))
        assert waits == (job.id not in allocation.workers)


def test_unknown_policy_offers_the_nearest_name() -> None:
    with pytest.raises(UsageError, match="did you mean 'balanced'"):
        policy_named("balnced")


@pytest.mark.parametrize("name", ["balanced", "exact", "doubling", "optimus"])
def test_a_job_with_more_weight_gets_no_fewer_workers(name: str) -> None:
    def workers(weight: float) -> int:
        jobs = tuple(
            JobView(JobSpec(f"j{i}", 0.0, max_workers=16, weight=weight if i == 0 else 1.0), CURVE, 1000.0)
            for i in range(3)
        )
        return policy_named(name).decide(Snapshot(0.0, Cluster.uniform(4, 4), jobs)).workers.get("j0", 0)

    assert workers(20.0) >= workers(1.0) >= workers(0.05)
    assert workers(20.0) > workers(0.05)


def test_small_savings_are_not_worth_a_restart() -> None:
    """Two equal jobs and one more free device: not resized if a restart costs more than it gains."""
    jobs = tuple(
        JobView(JobSpec(f"j{i}", 0.0, max_workers=8), CURVE, 200.0, restart_s=restart_s, workers=4)
        for i, restart_s in enumerate((300.0, 300.0))
    )
    cluster = Cluster.uniform(3, 4)
    kept = policy_named("balanced").decide(Snapshot(0.0, cluster, jobs))
    grown = policy_named("balanced").decide(Snapshot(0.0, cluster, tuple(replace(job, restart_s=0.0) for job in jobs)))
    assert kept.workers == {"j0": 4, "j1": 4}
    assert sum(grown.workers.values()) == 12
