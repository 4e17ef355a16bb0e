"""Clusters of several device kinds: the program across kinds, and what every policy must keep there."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.core.cluster import Cluster
from weft.core.job import JobSpec
from weft.core.snapshot import Allocation, JobView, Snapshot
from weft.core.speed import SpeedCurve, StepTime, fastest
from weft.elastic import POLICIES, Rules, policy_named
from weft.elastic.kind_knapsack import KindProblem, best_options
from weft.elastic.placement import Unit, place
from weft.errors import UsageError

MIXED = Cluster((4, 4, 8), kinds=("T4", "T4", "A100"))


def curve(step_s: float, largest: int = 8, gain: float = 1.7) -> SpeedCurve:
    sizes = [size for size in (1, 2, 4, 8) if size <= largest]
    return SpeedCurve({size: StepTime(step_s / gain ** np.log2(size)) for size in sizes})


def view(name: str, curves: dict[str, SpeedCurve], workers: int = 0, kind: str = "", **given: object) -> JobView:
    spec_names = ("priority", "user", "min_workers", "max_workers")
    wishes = {"max_workers": 8, "requested_workers": 2, **{key: given.pop(key) for key in spec_names if key in given}}
    own = curves[kind] if kind else fastest(curves)
    known = {"remaining_steps": 1000.0, "restart_s": 10.0, **given}
    return JobView(JobSpec(name, 0.0, **wishes), own, workers=workers, kind=kind, curves=tuple(curves.items()), **known)


def both(factor: float, **given: float) -> dict[str, SpeedCurve]:
    return {"T4": curve(1.0, **given), "A100": curve(1.0 / factor, **given)}


def random_problem(seed: int, num_jobs: int, capacity: tuple[int, ...], *, quota: bool = False) -> KindProblem:
    """Utilities that grow with size and depend on the kind, some options missing."""
    draw = np.random.default_rng(seed)
    menu = np.array([1, 2, 4])
    kinds = np.append(-1, np.repeat(np.arange(len(capacity)), len(menu)))
    sizes = np.tile(np.append(0, np.tile(menu, len(capacity))), (num_jobs, 1))
    speed = np.append(0.0, np.repeat(draw.uniform(0.5, 3.0, len(capacity)), len(menu)))
    worth = draw.lognormal(0.0, 1.0, (num_jobs, 1)) * speed * sizes ** draw.uniform(0.2, 1.0, (num_jobs, 1))
    utility = worth * draw.uniform(0.8, 1.2, sizes.shape)
    missing = draw.random(sizes.shape) < 0.1
    missing[:, 0] = False
    utility[missing] = -np.inf
    groups = ((np.arange(num_jobs // 2), max(1, sum(capacity) // 4)),) if quota else ()
    return KindProblem(utility, sizes, kinds, np.array(capacity), groups)


def brute_force(problem: KindProblem) -> float:
    best = -np.inf
    rows = range(len(problem.utility))
    for choice in itertools.product(range(problem.utility.shape[1]), repeat=len(problem.utility)):
        used = np.zeros(len(problem.capacity), dtype=int)
        for row, column in zip(rows, choice, strict=True):
            if column:
                used[problem.kinds[column]] += problem.sizes[row, column]
        in_quota = all(sum(problem.sizes[row, choice[row]] for row in group) <= most for group, most in problem.groups)
        if in_quota and (used <= problem.capacity).all():
            best = max(best, sum(problem.utility[row, column] for row, column in zip(rows, choice, strict=True)))
    return best


@pytest.mark.parametrize("quota", [False, True])
@pytest.mark.parametrize("capacity", [(3, 2), (5, 4), (2, 2, 1)])
def test_no_other_split_across_kinds_is_worth_more(capacity: tuple[int, ...], quota: bool) -> None:
    for seed in range(6):
        problem = random_problem(seed, 4, capacity, quota=quota)
        found = best_options(problem, np.zeros(4, dtype=np.int64))
        best = brute_force(problem)
        assert found.utility == pytest.approx(best, rel=1e-9)
        assert found.bound >= best - 1e-9 * abs(best)


@given(st.integers(0, 10_000), st.integers(1, 40), st.booleans())
@settings(max_examples=30, deadline=None)
def test_a_split_across_kinds_fits_and_is_below_its_bound(seed: int, num_jobs: int, quota: bool) -> None:
    problem = random_problem(seed, num_jobs, (7, 5, 3), quota=quota)
    found = best_options(problem, np.zeros(num_jobs, dtype=np.int64))
    rows = np.arange(num_jobs)
    held = problem.sizes[rows, found.choice]
    for kind, most in enumerate(problem.capacity):
        assert held[problem.kinds[found.choice] == kind].sum() <= most
    for group, most in problem.groups:
        assert held[group].sum() <= most
    assert problem.utility[rows, found.choice].sum() == pytest.approx(found.utility)
    assert found.utility <= found.bound * (1 + 1e-9)


def checked(snapshot: Snapshot, allocation: Allocation) -> Allocation:
    """Every job has devices of one kind, a size it allows there, and no kind has more than it has devices."""
    jobs = {job.id: job for job in snapshot.jobs}
    assert allocation.kinds.keys() == allocation.workers.keys()
    for name, num in allocation.workers.items():
        assert num in dict(jobs[name].curves)[allocation.kinds[name]].times
    for kind in snapshot.cluster.kind_names:
        held = sum(num for name, num in allocation.workers.items() if allocation.kinds[name] == kind)
        shared = sum(allocation.workers[one] for one, _ in allocation.pairs if allocation.kinds[one] == kind)
        assert held - shared <= snapshot.num_of_kind(kind)
    for one, other in allocation.pairs:
        assert allocation.kinds[one] == allocation.kinds[other]
    return allocation


@pytest.mark.parametrize("name", POLICIES)
@given(data=st.data())
@settings(max_examples=25, deadline=None)
def test_every_policy_keeps_each_job_on_one_kind(name: str, data: st.DataObject) -> None:
    jobs = []
    free = {"T4": 8, "A100": 8}
    for number in range(data.draw(st.integers(1, 12))):
        curves = both(data.draw(st.sampled_from([0.5, 1.0, 2.5])), largest=data.draw(st.sampled_from([1, 4, 8])))
        if data.draw(st.booleans()):
            del curves[data.draw(st.sampled_from(["T4", "A100"]))]
        kind = data.draw(st.sampled_from(sorted(curves)))
        workers = data.draw(st.sampled_from([0, 1, 2]))
        workers = workers if workers <= free[kind] and workers in curves[kind].times else 0
        free[kind] -= workers
        waited_s = 0.0 if workers else data.draw(st.sampled_from([0.0, 1e6]))
        jobs.append(
            view(
                f"job{number}",
                curves,
                workers,
                kind if workers else "",
                waited_s=waited_s,
                settled_s=data.draw(st.sampled_from([0.0, 100.0])) if workers else 0.0,
                priority=data.draw(st.integers(0, 1)),
                user=data.draw(st.sampled_from(["", "ann"])),
            )
        )
    quotas = {"ann": data.draw(st.integers(0, 4))} if data.draw(st.booleans()) else {}
    crossover = data.draw(st.booleans())
    snapshot = Snapshot(0.0, MIXED, tuple(jobs), quotas, crossover=crossover, held_by_kind={"T4": 0, "A100": 0})
    policy = policy_named(name, Rules(hold_s=10.0))
    found = checked(snapshot, policy.decide(snapshot))
    if not crossover:
        for user, most in quotas.items():
            assert sum(found.workers.get(job.id, 0) for job in jobs if job.spec.user == user) <= max(
                most, sum(job.workers for job in jobs if job.spec.user == user)
            )
    for job in jobs:
        policy.explain(snapshot, found, job.id)


def test_a_job_that_gains_most_from_fast_devices_gets_them() -> None:
    cluster = Cluster((1, 1), kinds=("T4", "A100"))
    slow, quick = view("slow", both(1.1, largest=1)), view("quick", both(4.0, largest=1))
    for jobs in ((slow, quick), (quick, slow)):
        found = policy_named("balanced").decide(Snapshot(0.0, cluster, jobs))
        assert found.kinds == {"slow": "T4", "quick": "A100"}


def test_a_move_to_faster_devices_must_pay_for_its_restart() -> None:
    almost_done = view("a", both(2.0, largest=1), 1, "T4", remaining_steps=15.0)
    long = view("a", both(2.0, largest=1), 1, "T4", remaining_steps=1e5)
    policy = policy_named("balanced")
    assert policy.decide(Snapshot(0.0, MIXED, (almost_done,))).kinds == {"a": "T4"}
    assert policy.decide(Snapshot(0.0, MIXED, (long,))).kinds == {"a": "A100"}


def test_devices_that_must_not_be_touched_are_not_given_away() -> None:
    jobs = tuple(view(f"job{number}", both(2.0)) for number in range(3))
    snapshot = Snapshot(0.0, MIXED, jobs, num_held=8, held_by_kind={"T4": 0, "A100": 8})
    for name in POLICIES:
        assert set(checked(snapshot, policy_named(name).decide(snapshot)).kinds.values()) == {"T4"}


def test_explain_says_how_fast_the_other_kind_is() -> None:
    snapshot = Snapshot(0.0, MIXED, (view("a", both(2.5)),))
    policy = policy_named("balanced")
    found = policy.decide(snapshot)
    assert policy.explainer(snapshot, found).why_this_kind("a") == "on A100, 2.50x as fast as on T4"


def test_placement_never_mixes_kinds() -> None:
    units = [Unit(("a",), 6, "T4"), Unit(("b",), 8, "A100"), Unit(("c",), 2, "T4")]
    placed = place(MIXED, units, {"a": (8, 9, 10, 11, 12, 13), "c": (0, 1)})
    assert placed["c"] == (0, 1)
    assert set(placed["a"]) == {2, 3, 4, 5, 6, 7}
    assert set(placed["b"]) == set(range(8, 16))


def test_a_cluster_needs_a_kind_for_each_node() -> None:
    with pytest.raises(UsageError, match="2 nodes with 1 device kinds"):
        Cluster((1, 1), kinds=("T4",))
