"""A bound that some policy beats is worth less than none: it would be printed beside every result."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.core.cluster import Cluster, Shape
from weft.core.job import JobSpec
from weft.core.speed import StepTime
from weft.elastic import POLICIES, policy_named
from weft.sim.bounds import LowerBound, lower_bound, srpt_ends_s
from weft.sim.demand import shapes
from weft.sim.readers import read_workload
from weft.sim.replay import simulate
from weft.sim.replay_options import SimulationOptions
from weft.sim.synthetic import synthetic_workload
from weft.sim.workload import TableProfile, TrueJob, Workload

# A rounding of the loop's clock is not a broken bound.
TOLERANCE = 1 - 1e-9


def one_job(step_s: dict[int, float], steps: float, submitted_s: float = 0.0) -> Workload:
    profile = TableProfile({size: StepTime(time) for size, time in step_s.items()})
    spec = JobSpec("only", submitted_s, max_workers=max(step_s), sizes=tuple(step_s))
    return Workload("one", (TrueJob(spec, profile, steps),))


def test_a_job_alone_meets_its_bound_exactly() -> None:
    workload = one_job({1: 1.0, 2: 0.6, 4: 0.5}, steps=100, submitted_s=30)
    cluster, options = Cluster.uniform(1, 4), SimulationOptions(decision_interval_s=60, restart_s=10)
    bound = lower_bound(workload, cluster, options)
    # decided at 60, ready at 70, 50 s on four devices
    assert bound.alone_s == pytest.approx(90.0)
    assert bound.mean_jct_s == pytest.approx(90.0)
    assert simulate(workload, cluster, policy_named("srtf"), options).mean_jct_s >= 90.0 * TOLERANCE


def test_the_bound_counts_what_a_start_costs_each_job() -> None:
    workload, cluster = one_job({1: 1.0}, steps=100), Cluster.uniform(1, 1)
    slow = Workload("slow", tuple(replace(job, start_s=50.0) for job in workload.jobs))
    options = SimulationOptions(decision_interval_s=0.0, restart_s=10)
    assert lower_bound(workload, cluster, options).alone_s == pytest.approx(110.0)
    assert lower_bound(slow, cluster, options).alone_s == pytest.approx(150.0)


def test_the_priced_bound_sees_what_the_simple_ones_miss() -> None:
    """Jobs that scale badly and come at once: alone ignores the queue, srpt the slow steps."""
    profile = TableProfile({1: StepTime(1.0), 4: StepTime(0.7)})
    specs = [JobSpec(f"job-{n}", 0.0, max_workers=4, sizes=(1, 4)) for n in range(16)]
    workload = Workload("burst", tuple(TrueJob(spec, profile, 1000.0) for spec in specs))
    bound = lower_bound(workload, Cluster.uniform(1, 4), SimulationOptions(restart_s=0))
    assert bound.priced_s > 1.1 * max(bound.alone_s, bound.srpt_s)
    # four at a time on one device each is the best there is: ends at 1000, 2000, 3000 and 4000
    assert bound.priced_s <= 2500.0
    assert bound.priced_s == pytest.approx(2500.0, rel=0.05)


@given(st.integers(0, 10_000))
@settings(max_examples=25, deadline=None)
def test_no_policy_beats_the_bound_on_random_queues(seed: int) -> None:
    draw = random.Random(seed)
    workload = random_workload(draw)
    cluster = Cluster.uniform(draw.choice((1, 2, 3)), 4)
    options = SimulationOptions(
        crossover=draw.random() < 0.5,
        restart_s=draw.choice((0.0, 30.0)),
        decision_interval_s=draw.choice((0.0, 60.0)),
        record=False,
    )
    bound_s = lower_bound(workload, cluster, options).mean_jct_s
    for name in POLICIES:
        result = simulate(workload, cluster, policy_named(name), options)
        assert result.mean_jct_s >= bound_s * TOLERANCE, name


def random_workload(draw: random.Random) -> Workload:
    profiles = []
    for _ in range(3):
        compute_s, wait_s = draw.uniform(0.2, 2.0), draw.uniform(0.0, 1.0)
        profiles.append(
            TableProfile(
                {
                    size: StepTime(compute_s / size + wait_s * (size - 1) / size, wait_s * (size - 1) / size)
                    for size in (1, 2, 4, 8)
                }
            )
        )
    now_s, jobs = 0.0, []
    for number in range(draw.randint(1, 12)):
        now_s += draw.choice((0.0, draw.expovariate(1 / 200)))
        spec = JobSpec(f"job-{number}", now_s, max_workers=8, requested_workers=2, sizes=(1, 2, 4, 8))
        jobs.append(TrueJob(spec, draw.choice(profiles), draw.uniform(10, 3000)))
    return Workload("random", tuple(jobs))


@pytest.mark.parametrize("crossover", [False, True])
def test_no_policy_beats_the_bound_on_a_crowded_queue(crossover: bool) -> None:
    workload = synthetic_workload("synthetic:extreme:60", num_devices=64)
    cluster, options = Cluster.uniform(16, 4), SimulationOptions(crossover=crossover, record=False)
    bound_s = lower_bound(workload, cluster, options).mean_jct_s
    for name in POLICIES:
        result = simulate(workload, cluster, policy_named(name), options)
        assert result.mean_jct_s >= bound_s * TOLERANCE, name


@pytest.mark.parametrize("crossover", [False, True])
def test_no_policy_beats_the_bound_on_a_public_workload(public_data: Path, crossover: bool) -> None:
    workload = read_workload(public_data / "pollux" / "workloads" / "workload-3.csv", num_devices=64)
    cluster, options = Cluster.uniform(16, 4), SimulationOptions(crossover=crossover, record=False)
    bound = lower_bound(workload, cluster, options)
    assert bound.mean_jct_s > bound.alone_s
    for name in POLICIES:
        result = simulate(workload, cluster, policy_named(name), options)
        assert result.mean_jct_s >= bound.mean_jct_s * TOLERANCE, name


def test_sharing_devices_can_only_lower_the_bound() -> None:
    workload = synthetic_workload("synthetic:extreme:60", num_devices=64)
    cluster = Cluster.uniform(16, 4)
    apart = lower_bound(workload, cluster, SimulationOptions()).mean_jct_s
    shared = lower_bound(workload, cluster, SimulationOptions(crossover=True)).mean_jct_s
    assert shared <= apart


@given(st.lists(st.tuples(st.floats(0, 100), st.floats(0.1, 50)), min_size=1, max_size=6))
def test_srpt_is_no_worse_than_any_order_without_preemption(jobs: list[tuple[float, float]]) -> None:
    ready, length = (np.array(column) for column in zip(*jobs, strict=True))
    best = srpt_ends_s(ready, length).sum()
    for order in (np.argsort(ready), np.argsort(length), np.arange(len(jobs))):
        now_s = total_s = 0.0
        for job in order:
            now_s = max(now_s, ready[job]) + length[job]
            total_s += now_s
        assert best <= total_s + 1e-6


class Lopsided:
    """Faster on uneven placements, which a bound that only looks at packed ones would miss."""

    sizes = (1, 2, 3)

    def step_time(self, shape: Shape) -> StepTime:
        return StepTime(0.2 if shape == (1, 2) else 1.0)


def test_a_bound_looks_at_every_placement_of_an_unknown_profile() -> None:
    assert set(shapes(3, 4)) == {(3,), (2, 1), (1, 2), (1, 1, 1)}
    spec = JobSpec("odd", 0.0, max_workers=3)
    workload = Workload("odd", (TrueJob(spec, Lopsided(), 100.0),))
    options = SimulationOptions(restart_s=0.0)
    assert lower_bound(workload, Cluster.uniform(2, 4), options).mean_jct_s == pytest.approx(20.0)


def test_the_largest_bound_is_the_one_that_is_named() -> None:
    crowded = LowerBound(alone_s=1.0, srpt_s=3.0, priced_s=2.0)
    assert (crowded.mean_jct_s, crowded.binding) == (3.0, "srpt")
    assert LowerBound(alone_s=1.0, srpt_s=3.0, priced_s=4.0).binding == "priced"
