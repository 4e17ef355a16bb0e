"""Which batch size an attempt gets, and that policies see the right speeds of a job whose batch size changes."""

from __future__ import annotations

import json

import pytest

from weft.control.state import Job, JobState
from weft.core.cluster import Cluster
from weft.core.job import JobSpec, Launch
from weft.core.step_report import BatchReport, Progress, StepReport, parse_report
from weft.core.submission import Submission, batch_range
from weft.daemon.knowledge import Knowledge
from weft.errors import UsageError

RANGED = Launch(("python", "train.py"), "/", batch="64:1024")


def running(num_workers: int, attempt: int = 1, launch: Launch = RANGED) -> Job:
    spec = JobSpec("a", submitted_s=0.0, max_workers=8, requested_workers=8)
    devices = tuple(range(num_workers))
    return Job(spec, state=JobState.RUNNING, attempt=attempt, devices=devices, wanted=devices, launch=launch)


def report(job: Job, step: int, batch: BatchReport | None, step_s: float = 0.1, exposed_s: float = 0.05) -> StepReport:
    left = 10_000 // (batch.size if batch else 64)
    progress = Progress(step, step + left, step_s=step_s, exposed_s=exposed_s)
    return StepReport(job.id, job.attempt, 0, len(job.devices), progress, can_resume=True, batch=batch)


def measured(knowledge: Knowledge, job: Job, batch: BatchReport | None, step_s: float = 0.1) -> None:
    for step in range(1, 10):
        knowledge.reported(job, report(job, step, batch, step_s), now_s=float(step))


@pytest.fixture
def knowledge() -> Knowledge:
    return Knowledge(Cluster.uniform(1, 8), restart_prior_s=10.0)


def test_nothing_is_chosen_until_the_noise_is_measured(knowledge: Knowledge) -> None:
    job = running(2)
    assert knowledge.batches.environment(job, 2) == {"WEFT_BATCH_RANGE": "64:1024"}
    measured(knowledge, job, BatchReport(64, 64))
    assert knowledge.batches.environment(job, 2) == {"WEFT_BATCH_RANGE": "64:1024"}
    measured(knowledge, job, BatchReport(64, 64, noise_scale=1e6))
    told = knowledge.batches.environment(job, 2)
    assert told.pop("WEFT_BATCH_RANGE") == "64:1024"
    assert 512 <= int(told.pop("WEFT_BATCH_SIZE")) <= 1024
    assert told == {}


def test_exact_gradients_keep_the_smallest_batch(knowledge: Knowledge) -> None:
    measured(knowledge, running(2), BatchReport(64, 64, noise_scale=1.0))
    assert knowledge.batches.chosen(running(2), 2) == 64


def test_noise_measured_on_two_workers_is_remembered_on_one(knowledge: Knowledge) -> None:
    measured(knowledge, running(2), BatchReport(64, 64, noise_scale=1e6))
    measured(knowledge, running(1, attempt=2), BatchReport(512, 64))
    assert (knowledge.batches.chosen(running(2), 2) or 0) >= 512


def test_a_job_without_a_range_is_told_nothing(knowledge: Knowledge) -> None:
    plain = running(2, launch=Launch(("python", "train.py"), "/"))
    measured(knowledge, plain, None)
    assert knowledge.batches.environment(plain, 2) == {}


def test_policies_compare_steps_of_different_batches_by_their_samples(knowledge: Knowledge) -> None:
    """Twice the batch at the same step time is twice as fast, and half as many steps are not half of the work."""
    measured(knowledge, running(1), BatchReport(64, 64), step_s=0.1)
    before = knowledge.belief(running(1), (1,), 10.0, 60.0)
    measured(knowledge, running(2, attempt=2), BatchReport(128, 64), step_s=0.1)
    after = knowledge.belief(running(2, attempt=2), (1,), 10.0, 60.0)
    assert after.curve.times[1].step_s == pytest.approx(0.1)
    assert after.curve.times[2].step_s == pytest.approx(0.05)
    assert after.remaining_steps == pytest.approx(before.remaining_steps, rel=0.02)


def test_what_was_learned_survives_a_restart_of_the_controller(knowledge: Knowledge) -> None:
    job = running(2)
    measured(knowledge, job, BatchReport(64, 64, noise_scale=1e6))
    document = json.loads(json.dumps(knowledge.document()))
    restored = Knowledge(Cluster.uniform(1, 8), restart_prior_s=10.0)
    restored.restore(document, [job.id])
    assert restored.batches.chosen(job, 4) == knowledge.batches.chosen(job, 4)
    assert (restored.batches.chosen(job, 4) or 0) >= 512
    knowledge.finished(job)
    assert knowledge.batches.chosen(job, 4) is None


def test_a_report_keeps_its_batch_unless_it_is_impossible() -> None:
    sent = report(running(2), 3, BatchReport(64, 32, 12.5))
    message = sent.message()
    assert parse_report(json.dumps(message).encode()) == sent
    for batch in ({"size": -1, "script_size": 4}, {"size": 4}, 7, {"size": 4, "script_size": 0}):
        found = parse_report(json.dumps(message | {"batch": batch}).encode())
        assert found is not None
        assert found.batch is None


@pytest.mark.parametrize("text", ["256", "2048:256", "256:256", "0:10", "a:b", "256-2048", "1:99999999999"])
def test_an_impossible_range_is_rejected_in_one_line(text: str) -> None:
    with pytest.raises(UsageError, match="such as 256:2048") as refused:
        batch_range(text)
    assert "\n" not in str(refused.value)


def test_a_range_that_could_never_be_used_is_refused() -> None:
    for workers, expected in ((1, "measured with two or more"), (100, "one sample per worker")):
        with pytest.raises(UsageError, match=expected):
            Submission(RANGED, max_workers=workers)
    Submission(RANGED, max_workers=8)
