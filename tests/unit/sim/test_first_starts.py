"""Waits are held against a queue with backfill that was worked out by hand."""

from __future__ import annotations

from pathlib import Path

from benchmarks.elastic.first_starts import backfilled_starts_s, rigid_row, start_row

from weft.core.cluster import Cluster
from weft.core.job import JobSpec
from weft.core.speed import StepTime
from weft.elastic import policy_named
from weft.sim.readers import read_workload
from weft.sim.replay import simulate
from weft.sim.replay_options import SimulationOptions
from weft.sim.workload import TableProfile, TrueJob, Workload


def job(name: str, submitted_s: float, workers: int, length_s: float) -> TrueJob:
    spec = JobSpec(name, submitted_s, min_workers=workers, max_workers=workers, requested_workers=workers)
    return TrueJob(spec, TableProfile({workers: StepTime(1.0)}), length_s)


def test_a_later_job_starts_early_only_where_it_does_not_delay_the_first_in_line() -> None:
    jobs = (
        job("running", 0.0, 3, 100.0),
        job("head", 1.0, 4, 50.0),
        job("short", 2.0, 1, 90.0),
        job("long", 3.0, 1, 500.0),
    )
    starts_s = backfilled_starts_s(Workload("w", jobs), Cluster((4,)), SimulationOptions(restart_s=0.0))
    assert starts_s == [0.0, 100.0, 2.0, 150.0]


def test_short_and_rigid_jobs_of_a_public_workload_do_not_wait(public_data: Path) -> None:
    workload = read_workload(public_data / "pollux" / "workloads" / "workload-2.csv", num_devices=64)
    cluster, options = Cluster.uniform(16, 4), SimulationOptions(record=False)
    result = simulate(workload, cluster, policy_named("balanced"), options)
    short = start_row(workload, cluster, result)
    assert short["short_jobs"] > 50
    assert short["worst_wait"] <= 1.0
    assert short["late_short_jobs"] == "none"
    rigid = rigid_row(workload, cluster, result, options)
    assert rigid["rigid_jobs"] > 50
    assert rigid["worst_rigid_wait"] <= 1.0
    assert rigid["late_rigid_jobs"] == "none"


def test_jobs_that_wait_too_long_are_listed_by_name() -> None:
    """Without backfill, a short job stays behind one that needs the whole cluster until it is due."""
    jobs = (job("running", 0.0, 3, 5000.0), job("head", 1.0, 4, 50.0), job("short", 2.0, 1, 20.0))
    workload, cluster, options = Workload("w", jobs), Cluster((4,)), SimulationOptions(restart_s=0.0)
    result = simulate(workload, cluster, policy_named("fifo"), options)
    assert start_row(workload, cluster, result)["late_short_jobs"] == "head"
    assert rigid_row(workload, cluster, result, options)["late_rigid_jobs"] == "short"
