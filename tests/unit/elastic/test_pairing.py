"""Pairs are formed where they pay, and only there."""

from __future__ import annotations

from dataclasses import replace

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.core.cluster import Cluster
from weft.core.job import JobSpec
from weft.core.snapshot import JobView, Snapshot
from weft.core.speed import SpeedCurve, StepTime
from weft.elastic import Rules, policy_named
from weft.elastic.pairing import PairOptions, Sharing, match, pair_sizes


def snapshot_of(curves: list[SpeedCurve], *, crossover: bool = True, may_share: bool = True) -> Snapshot:
    jobs = tuple(
        JobView(JobSpec(f"j{i}", float(i), max_workers=8, may_share=may_share), curve, 1000.0)
        for i, curve in enumerate(curves)
    )
    return Snapshot(0.0, Cluster.uniform(2, 4), jobs, crossover=crossover, handover_s=0.001)


# Half of a step is spent waiting for the network at 8 workers, which are twice as fast as 4.
WAITING = SpeedCurve({4: StepTime(2.0, 0.2), 8: StepTime(1.0, 0.5)})
# Never waits.
COMPUTING = SpeedCurve({4: StepTime(2.0), 8: StepTime(1.0)})


def test_two_jobs_that_wait_for_the_network_take_turns() -> None:
    allocation = policy_named("balanced").decide(snapshot_of([WAITING, WAITING]))
    assert allocation.pairs == (("j0", "j1"),)
    assert not allocation.fillers
    assert allocation.workers == {"j0": 8, "j1": 8}
    assert allocation.num_devices() == 8


def test_a_long_job_fills_the_gaps_of_a_short_one() -> None:
    """The short job keeps its speed on all devices; the long one advances instead of waiting."""
    snapshot = snapshot_of([WAITING, COMPUTING])
    short, long = snapshot.jobs
    jobs = (replace(short, remaining_steps=10.0), replace(long, remaining_steps=1e6))
    allocation = policy_named("balanced").decide(replace(snapshot, jobs=jobs))
    assert allocation.workers == {"j0": 8, "j1": 8}
    assert allocation.fillers == {"j1"}


def test_jobs_that_never_wait_are_not_paired() -> None:
    assert policy_named("balanced").decide(snapshot_of([COMPUTING, COMPUTING])).pairs == ()


@pytest.mark.parametrize("switch", ["crossover", "may_share"])
def test_nobody_is_paired_against_the_users_will(switch: str) -> None:
    snapshot = snapshot_of([WAITING, WAITING], **{switch: False})
    assert policy_named("balanced").decide(snapshot).pairs == ()


def test_the_rate_limit_does_not_tear_a_fresh_pair_apart() -> None:
    snapshot = snapshot_of([WAITING, WAITING])
    first, second = snapshot.jobs
    jobs = (
        replace(first, workers=8, partner="j1", settled_s=10.0),
        replace(second, workers=8, partner="j0", settled_s=10.0),
    )
    policy = policy_named("balanced", Rules(hold_s=300.0))
    assert policy.decide(replace(snapshot, jobs=jobs)).pairs == (("j0", "j1"),)


def test_a_lone_job_keeps_its_devices_to_itself() -> None:
    allocation = policy_named("balanced").decide(snapshot_of([WAITING]))
    assert allocation.pairs == ()
    assert allocation.workers == {"j0": 8}


@settings(max_examples=100, deadline=None)
@given(num_jobs=st.integers(2, 9), seed=st.integers(0, 10_000))
def test_matching_is_close_to_the_true_maximum(num_jobs: int, seed: int) -> None:
    """Never below 2/3 of the maximum-weight matching (odd cycles of three), usually equal to it."""
    draw = np.random.default_rng(seed)
    first, second = np.triu_indices(num_jobs, 1)
    values = draw.normal(size=len(first))
    empty = np.zeros((len(first), 1))
    pairs = PairOptions(first, second, (Sharing.TURNS,) * len(first), np.array([1]), empty, empty)
    chosen = match(np.zeros(num_jobs), pairs, values)
    members = [int(row) for index in chosen for row in (first[index], second[index])]
    assert len(members) == len(set(members))
    graph = nx.Graph()
    graph.add_weighted_edges_from(
        (int(a), int(b), float(v)) for a, b, v in zip(first, second, values, strict=True) if v > 0
    )
    best = sum(graph.edges[edge]["weight"] for edge in nx.max_weight_matching(graph))
    assert sum(values[index] for index in chosen) >= best * 2 / 3 - 1e-9


def test_pair_sizes_stay_few_on_large_clusters() -> None:
    assert pair_sizes(64, 4).tolist()[:5] == [1, 2, 4, 6, 8]
    assert len(pair_sizes(4096, 8)) <= 24
