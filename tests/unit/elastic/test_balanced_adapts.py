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
from weft.elastic.balanced import GUESS_STEEPNESS, Balanced, num_longer, num_waiting


def view(name: str, elasticity: float, remaining_steps: float) -> JobView:
    curve = SpeedCurve({size: StepTime(size**-elasticity) for size in (1, 2, 4, 8)})
    return JobView(JobSpec(name, 0.0, max_workers=8, sizes=(1, 2, 4, 8)), curve, remaining_steps)


def shares(*jobs: JobView) -> dict[str, int]:
    return dict(Balanced().decide(Snapshot(0.0, Cluster.uniform(2, 4), jobs)).workers)


def test_a_known_length_counts_the_longer_jobs_and_a_guess_counts_them_by_their_chance() -> None:
    times_s = np.array([10.0, 1000.0, 100.0])
    assert num_longer(times_s, np.array([True, True, True])).tolist() == [3, 1, 2]
    guessed = num_longer(times_s, np.array([False, False, False]))
    assert 3 > guessed[0] > guessed[2] > guessed[1] > 1
    assert guessed.sum() == pytest.approx(3 + 3)  # of every two jobs one is longer, and each counts itself
    mixed = num_longer(times_s, np.array([True, False, True]))
    assert 2 < mixed[0] < 3
    assert 1 < mixed[2] < 2


def test_expected_longer_jobs_of_a_large_queue_agree_with_those_of_each_pair() -> None:
    times_s = np.geomspace(1.0, 1e6, 300)
    chance = 1 / (1 + (times_s[:, None] / times_s[None, :]) ** GUESS_STEEPNESS)
    found = num_longer(times_s, np.zeros(300, dtype=bool))
    assert found == pytest.approx(chance.sum(axis=1) + 0.5, rel=0.01)


def test_jobs_that_scale_badly_run_side_by_side_and_those_that_scale_well_one_after_the_other() -> None:
    well = shares(view("short", 0.95, 100.0), view("long", 0.95, 100_000.0))
    badly = shares(view("short", 0.3, 100.0), view("long", 0.3, 100_000.0))
    assert well["short"] > badly["short"] == badly["long"] == 4


def test_a_long_job_keeps_a_device_beside_several_shorter_ones() -> None:
    several = [view(f"job{number}", 0.6, 100_000.0 + 1_000.0 * number) for number in range(4)]
    found = shares(*several, view("long", 0.6, 1_000_000.0))
    assert found["long"] >= 1
    assert found["job0"] >= found["job3"] >= 1


def test_the_longest_job_counts_more_in_a_longer_queue_because_jobs_will_come_again() -> None:
    few, many = (num_waiting(np.geomspace(1.0, 1e6, num), np.full(num, True)) for num in (2, 20))
    assert many[-1] > few[-1] > 1
    assert (np.diff(many) < 0).all()
    guessed = np.full(20, False)
    lengths_s = np.geomspace(1.0, 1e6, 20)
    assert num_waiting(lengths_s, guessed).tolist() == num_longer(lengths_s, guessed).tolist()


def test_a_guessed_order_of_jobs_costs_the_one_behind_less() -> None:
    jobs = [view("short", 0.8, 100.0), view("long", 0.8, 1_000.0)]
    guessed = [replace(job, is_length_known=False) for job in jobs]
    assert shares(*guessed).get("long", 0) > shares(*jobs).get("long", 0)


@pytest.mark.parametrize(("waiting_s", "is_stopped"), [(7.5, True), (8.5, False), (9.5, False)])
def test_a_job_is_stopped_only_for_one_that_is_shorter_by_more_than_both_restarts(
    waiting_s: float, is_stopped: bool
) -> None:
    curve = SpeedCurve({1: StepTime(1.0)})
    running = JobView(JobSpec("running", 0.0, max_workers=1), curve, 10.0, restart_s=1.0, workers=1)
    waiting = JobView(JobSpec("waiting", 0.0, max_workers=1), curve, waiting_s, restart_s=1.0)
    found = Balanced().decide(Snapshot(0.0, Cluster.uniform(1, 1), (running, waiting)))
    assert found.workers == {"waiting" if is_stopped else "running": 1}


@pytest.mark.parametrize("policy", list(POLICIES))
def test_a_job_of_seconds_is_not_kept_waiting_by_jobs_that_have_waited_for_hours(policy: str) -> None:
    if policy == "fifo":
        pytest.skip("fifo stops no job for another")
    aged = [replace(view(f"aged{number}", 0.9, 1e6), waited_s=1e5) for number in range(8)]
    short = replace(view("short", 0.9, 20.0), waited_s=500.0)
    snapshot = Snapshot(2e5, Cluster.uniform(2, 4), (*aged, short))
    assert policy_named(policy).decide(snapshot).workers.get("short")
