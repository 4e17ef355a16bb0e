"""The default policy weighs jobs by how well they scale and by what is known about their lengths."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from weft.core.cluster import Cluster
from weft.core.job import JobSpec
from weft.core.snapshot import JobView, Snapshot
from weft.core.speed import SpeedCurve, StepTime
from weft.elastic import POLICIES, policy_named
from weft.elastic.menu import MenuTable
from weft.elastic.optimal import FULL_ELASTICITY, Balanced, mean_elasticity


def view(name: str, elasticity: float, remaining_steps: float) -> JobView:
    curve = SpeedCurve({size: StepTime(size**-elasticity) for size in (1, 2, 4, 8)})
    return JobView(JobSpec(name, 0.0, max_workers=8, sizes=(1, 2, 4, 8)), curve, remaining_steps)


def shares(*jobs: JobView) -> dict[str, int]:
    return dict(Balanced().decide(Snapshot(0.0, Cluster.uniform(2, 4), jobs)).workers)


def test_elasticity_is_the_exponent_of_the_speedup() -> None:
    sizes = np.array([[0, 1, 4], [0, 2, 8], [0, 3, 0]])
    step_s = np.array([[np.inf, 1.0, 0.5], [np.inf, 1.0, 0.25], [np.inf, 1.0, np.inf]])
    assert mean_elasticity(MenuTable(sizes, step_s)) == pytest.approx((0.5 + 1.0) / 2)
    assert mean_elasticity(MenuTable(sizes[2:], step_s[2:])) == FULL_ELASTICITY


def test_jobs_that_scale_badly_run_side_by_side_and_those_that_scale_well_one_after_the_other() -> None:
    well = shares(view("short", 0.95, 100.0), view("long", 0.95, 100_000.0))
    badly = shares(view("short", 0.3, 100.0), view("long", 0.3, 100_000.0))
    assert well["short"] > badly["short"] == badly["long"] == 4


def test_a_guessed_order_of_jobs_costs_the_one_behind_less() -> None:
    jobs = [view("short", 0.9, 100.0), view("long", 0.9, 100_000.0)]
    guessed = [replace(job, is_length_known=False) for job in jobs]
    assert shares(*guessed).get("long", 0) >= shares(*jobs).get("long", 0)
    assert shares(*guessed)["long"] > 0


@pytest.mark.parametrize("policy", list(POLICIES))
def test_a_job_of_seconds_is_not_kept_waiting_by_jobs_that_have_waited_for_hours(policy: str) -> None:
    if policy == "fifo":
        pytest.skip("fifo stops no job for another")
    aged = [replace(view(f"aged{number}", 0.9, 1e6), waited_s=1e5) for number in range(8)]
    short = replace(view("short", 0.9, 20.0), waited_s=500.0)
    snapshot = Snapshot(2e5, Cluster.uniform(2, 4), (*aged, short))
    assert policy_named(policy).decide(snapshot).workers.get("short")
