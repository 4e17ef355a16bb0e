"""The exact program is exact, and the heuristics stay near it."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_snapshots import snapshots

from weft.core.snapshot import Snapshot
from weft.elastic import knapsack, policy_named


def brute_force(utility: np.ndarray, sizes: np.ndarray, capacity: int) -> float:
    best = -np.inf
    for columns in itertools.product(range(utility.shape[1]), repeat=len(utility)):
        rows = np.arange(len(utility))
        if sizes[rows, columns].sum() <= capacity:
            best = max(best, float(utility[rows, columns].sum()))
    return best


@st.composite
def programs(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, int]:
    num_jobs, num_sizes = draw(st.integers(1, 5)), draw(st.integers(1, 4))
    values = st.floats(-100, 100, allow_subnormal=False)
    utility = np.array([[0.0, *(draw(values) for _ in range(num_sizes))] for _ in range(num_jobs)])
    sizes = np.array(
        [
            [0, *sorted(draw(st.sets(st.integers(1, 12), min_size=num_sizes, max_size=num_sizes)))]
            for _ in range(num_jobs)
        ]
    )
    for row in range(num_jobs):
        num = draw(st.integers(1, num_sizes + 1))  # shorter menus are padded with empty sizes
        utility[row, num:] = draw(st.sampled_from([0.0, -np.inf]))
        sizes[row, num:] = 0
        barred = draw(st.integers(1, num_sizes))
        utility[row, barred] = draw(st.sampled_from([utility[row, barred], -np.inf]))
    return utility, sizes, draw(st.integers(0, 25))


@pytest.mark.parametrize("small_table", [0, 10**9], ids=["by price", "by table"])
@settings(max_examples=300, deadline=None)
@given(program=programs())
def test_best_choices_equal_brute_force(small_table: int, program: tuple[np.ndarray, np.ndarray, int]) -> None:
    utility, sizes, capacity = program
    before, knapsack._SMALL_TABLE = knapsack._SMALL_TABLE, small_table
    try:
        choice = knapsack.best_choices(utility, sizes, capacity)
    finally:
        knapsack._SMALL_TABLE = before
    rows = np.arange(len(utility))
    assert sizes[rows, choice].sum() <= capacity
    assert utility[rows, choice].sum() == pytest.approx(brute_force(utility, sizes, capacity), abs=1e-9)


@settings(max_examples=100, deadline=None)
@given(program=programs(), limit=st.integers(0, 10))
def test_quotas_are_kept_at_the_best_total(program: tuple[np.ndarray, np.ndarray, int], limit: int) -> None:
    utility, sizes, capacity = program
    group = np.arange(0, len(utility), 2)
    choice = knapsack.best_choices_in_groups(utility, sizes, capacity, [(group, limit)])
    rows = np.arange(len(utility))
    best = -np.inf
    for columns in itertools.product(range(utility.shape[1]), repeat=len(utility)):
        taken = sizes[rows, columns]
        if taken.sum() <= capacity and taken[group].sum() <= limit:
            best = max(best, float(utility[rows, columns].sum()))
    assert sizes[group, choice[group]].sum() <= limit
    assert utility[rows, choice].sum() == pytest.approx(best, abs=1e-9)


def test_large_programs_agree_with_the_whole_table() -> None:
    draw = np.random.default_rng(7)
    for _ in range(20):
        sizes = np.cumsum(draw.integers(1, 5, size=(40, 12)), axis=1) - 1
        sizes[:, 0] = 0
        utility = np.concatenate([np.zeros((40, 1)), np.cumsum(draw.exponential(size=(40, 11)), axis=1)], axis=1)
        rows = np.arange(40)
        by_price = utility[rows, knapsack.best_choices(utility, sizes, 150)].sum()
        by_table = utility[rows, knapsack._table(list(zip(utility, sizes, strict=True)), 150)].sum()
        assert by_price == pytest.approx(by_table, rel=1e-12)


def test_small_tables_choose_the_same_of_equals_as_the_whole_table() -> None:
    draw = np.random.default_rng(11)
    for _ in range(200):
        sizes = np.tile([0, 1, 2, 4], (6, 1))
        utility = np.concatenate([np.zeros((6, 1)), draw.integers(-1, 4, size=(6, 3))], axis=1) / 10
        last = utility.argmax(axis=1)
        rows = [(utility[row, : end + 1], sizes[row, : end + 1]) for row, end in enumerate(last.tolist())]
        assert knapsack._small_table(utility, sizes, 5, last).tolist() == knapsack._table(rows, 5)


def summed_time(snapshot: Snapshot, workers: dict[str, int]) -> float:
    total = 0.0
    for job in snapshot.jobs:
        if workers.get(job.id):
            restart_s = job.restart_s if workers[job.id] != job.workers else 0.0
            total += job.spec.weight * (job.remaining_steps * job.curve.times[workers[job.id]].step_s + restart_s)
    return total


@settings(max_examples=150, deadline=None)
@given(snapshot=snapshots())
def test_exact_is_never_beaten_on_the_papers_objective(snapshot: Snapshot) -> None:
    """Where all jobs fit: no combination of allowed sizes has a smaller summed remaining time."""
    jobs = tuple(replace(job, spec=replace(job.spec, priority=0, user="")) for job in snapshot.jobs[:4])
    snapshot = replace(snapshot, jobs=jobs, quotas={})
    policy = policy_named("exact")
    menus = policy._book.menus(snapshot.cluster, jobs)
    if not jobs or any(not menu.sizes for menu in menus):
        return
    if sum(menu.sizes[0] for menu in menus) > snapshot.cluster.num_devices:
        return
    best = min(
        summed_time(snapshot, {job.id: size for job, size in zip(jobs, sizes, strict=True)})
        for sizes in itertools.product(*(menu.sizes for menu in menus))
        if sum(sizes) <= snapshot.cluster.num_devices
    )
    found = summed_time(snapshot, dict(policy.decide(snapshot).workers))
    assert found == pytest.approx(best, rel=1e-9)
