"""Synthetic queues must be reproducible, and as crowded as their names say."""

from __future__ import annotations

from pathlib import Path

import pytest

from weft.errors import UsageError
from weft.sim.readers.application_profiles import ApplicationFolder
from weft.sim.synthetic import OFFERED_LOAD, synthetic_workload


def submissions(source: str, seed: int) -> list[tuple[str, float, float]]:
    jobs = synthetic_workload(source, seed=seed, num_devices=64).jobs
    return [(job.spec.id, job.spec.submitted_s, job.total_steps) for job in jobs]


def test_the_same_seed_gives_the_same_queue_and_another_seed_another() -> None:
    assert submissions("synthetic:moderate", 1) == submissions("synthetic:moderate", 1)
    assert submissions("synthetic:moderate", 1) != submissions("synthetic:moderate", 2)


@pytest.mark.parametrize("level", OFFERED_LOAD)
def test_a_level_offers_about_the_load_it_names(level: str) -> None:
    jobs = synthetic_workload(f"synthetic:{level}:4000", num_devices=64).jobs
    device_s = sum(
        job.spec.requested_workers * job.profile.step_time((job.spec.requested_workers,)).step_s * job.total_steps
        for job in jobs
    )
    offered = device_s / (64 * jobs[-1].spec.submitted_s)
    assert offered == pytest.approx(OFFERED_LOAD[level], rel=0.15)


def test_on_a_small_cluster_no_job_asks_for_more_than_it_has() -> None:
    jobs = synthetic_workload("synthetic:extreme", num_devices=4).jobs
    assert max(job.spec.requested_workers for job in jobs) == 4


def test_measured_applications_can_be_drawn_from(public_data: Path) -> None:
    for folder in (public_data / "pollux" / "profiles", public_data / "elasticflow" / "A100"):
        applications = ApplicationFolder(folder)
        workload = synthetic_workload("synthetic:none:50", applications=applications, num_devices=64)
        assert {job.spec.id.rsplit("-", 1)[0] for job in workload.jobs} <= set(applications.names())


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("synthetic:moderat", "no level of contention 'moderat': did you mean 'moderate'"),
        ("synthetic:none:0", "requests '0' jobs: expected a number"),
        ("synthetic:none:1000001", "expected a number from 1 to 1000000"),
        ("synthetic:none:many", "requests 'many' jobs: expected a number"),
    ],
)
def test_an_unknown_level_is_refused(source: str, expected: str) -> None:
    with pytest.raises(UsageError, match=expected):
        synthetic_workload(source, num_devices=64)
