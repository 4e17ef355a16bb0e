"""What the controller believes about jobs, including odd ones."""

from __future__ import annotations

import json
import math

import pytest

from weft.control.state import Job, JobState
from weft.core.cluster import Cluster
from weft.core.job import JobSpec
from weft.core.step_report import Progress, StepReport
from weft.daemon.knowledge import Knowledge, steps_to_rest

CLUSTER = Cluster.uniform(1, 8)


def running(num_workers: int = 1, attempt: int = 1, **values: object) -> Job:
    spec = JobSpec("a", submitted_s=0.0, max_workers=8, requested_workers=8)
    devices = tuple(range(num_workers))
    return Job(spec, state=JobState.RUNNING, attempt=attempt, devices=devices, wanted=devices, **values)  # type: ignore[arg-type]


def report(job: Job, step: int, step_s: float, loss: float | None = None, **values: object) -> StepReport:
    progress = Progress(step, step_s=step_s, loss=loss)
    return StepReport(job.id, job.attempt, 0, len(job.devices), progress, **values)  # type: ignore[arg-type]


def measure(knowledge: Knowledge, job: Job, step_s: float, num: int = 10, **values: object) -> list[bool]:
    return [
        knowledge.reported(job, report(job, step, step_s, **values), now_s=float(step)) for step in range(1, num + 1)
    ]


@pytest.fixture
def knowledge() -> Knowledge:
    return Knowledge(CLUSTER, restart_prior_s=10.0)


def test_job_without_reports_is_never_movable(knowledge: Knowledge) -> None:
    assert not knowledge.is_movable(running())


def test_job_is_movable_once_it_was_measured_at_its_size(knowledge: Knowledge) -> None:
    job = running()
    measure(knowledge, job, 0.1, num=1)
    assert not knowledge.is_movable(job)
    measure(knowledge, job, 0.1)
    assert knowledge.is_movable(job)
    assert not knowledge.is_movable(running(attempt=2)), "the next attempt has not reported yet"


def test_a_job_that_lost_its_work_when_stopped_is_left_alone_from_then_on(knowledge: Knowledge) -> None:
    job = running()
    measure(knowledge, job, 0.1)
    knowledge.stopped(job.id, 1, 20.0, saved=False)
    again = running(attempt=2)
    measure(knowledge, again, 0.1)
    assert not knowledge.is_movable(again)


def test_job_that_says_it_cannot_resume_is_left_alone(knowledge: Knowledge) -> None:
    job = running()
    measure(knowledge, job, 0.1, can_resume=False)
    assert not knowledge.is_movable(job)
    measure(knowledge, job, 0.1, can_resume=True)
    assert knowledge.is_movable(job), "it has called resume in the meantime"


def test_an_attempt_called_off_before_its_first_step_does_not_count_as_unable_to_resume(knowledge: Knowledge) -> None:
    measure(knowledge, running(), 0.1)
    knowledge.stopped("a", 2, 20.0, saved=False)
    again = running(attempt=3)
    measure(knowledge, again, 0.1)
    assert knowledge.is_movable(again)


def test_first_steps_do_not_count(knowledge: Knowledge) -> None:
    job = running()
    knowledge.reported(job, report(job, 1, 0.9), 1.0)
    measure(knowledge, job, 0.1)
    assert knowledge.curve(job, (1,)).times[1].step_s == pytest.approx(0.1)


def test_sizes_are_explored_by_doubling(knowledge: Knowledge) -> None:
    assert knowledge.curve(running(), (1,)).sizes == (1,)
    measure(knowledge, running(1), 1.0)
    assert knowledge.curve(running(1), (1,)).sizes == (1, 2)
    measure(knowledge, running(2, attempt=2), 0.6)
    assert knowledge.curve(running(2, attempt=2), (1,)).sizes == (1, 2, 3, 4)


def test_speed_change_is_worth_a_decision_and_noise_is_not(knowledge: Knowledge) -> None:
    job = running()
    assert any(measure(knowledge, job, 0.1))
    assert not any(measure(knowledge, job, 0.105))
    assert any(measure(knowledge, job, 0.2, num=40))


def test_many_small_changes_add_up_to_a_decision(knowledge: Knowledge) -> None:
    job = running()
    measure(knowledge, job, 0.1)
    noted = [any(measure(knowledge, job, 0.1 * 1.06**power, num=40)) for power in range(1, 6)]
    assert any(noted)


def test_restart_cost_is_learned_from_stop_to_first_step(knowledge: Knowledge) -> None:
    assert knowledge.restarts.estimate_s("a") == 10.0
    knowledge.restarts.start_ordered("a", 0.0)
    knowledge.reported(running(), report(running(), 1, 0.1), 3.0)
    assert knowledge.restarts.estimate_s("a") == 3.0
    knowledge.restarts.stop_ordered("a", 100.0)
    knowledge.stopped("a", 1, 101.0, saved=True)
    knowledge.restarts.start_ordered("a", 500.0)  # the long wait before it is not part of a restart's cost
    again = running(attempt=2)
    knowledge.reported(again, report(again, 2, 0.1), 505.0)
    assert knowledge.restarts.job_document("a") == [3.0, [6.0]]


def test_first_start_that_waited_for_the_engine_does_not_count_as_the_cost_of_a_restart(knowledge: Knowledge) -> None:
    knowledge.restarts.start_ordered("a", 0.0)
    knowledge.restarts.started("a", 8.0)
    knowledge.reported(running(), report(running(), 1, 0.1), 8.5)
    assert knowledge.restarts.estimate_s("a") == 0.5
    knowledge.restarts.stop_ordered("a", 100.0)
    knowledge.stopped("a", 1, 100.5, saved=True)
    knowledge.restarts.start_ordered("a", 101.0)
    knowledge.restarts.started("a", 102.0)  # from now on every part of it counts
    again = running(attempt=2)
    knowledge.reported(again, report(again, 2, 0.1), 102.5)
    assert knowledge.restarts.job_document("a") == [0.5, [2.0]]


def test_declared_steps_override_every_estimate(knowledge: Knowledge) -> None:
    job = running(progress=Progress(0, total_steps=100))
    measure(knowledge, job, 0.1, num=30)
    curve = knowledge.curve(job, (1,))
    assert knowledge.remaining_steps(job, curve, 50.0, usual_s=60.0) == 70.0


def test_a_job_that_starts_over_is_not_assumed_to_be_nearly_done(knowledge: Knowledge) -> None:
    job = running(attempt=2, progress=Progress(90, total_steps=100))
    measure(knowledge, job, 0.1)
    assert knowledge.reports.progress(job).step == 10
    assert knowledge.remaining_steps(job, knowledge.curve(job, (1,)), 50.0, usual_s=60.0) == 90.0


def test_undeclared_steps_follow_the_loss_curve(knowledge: Knowledge) -> None:
    job = running()
    for step in range(10, 1000, 10):
        loss = 1.0 / (0.01 * step + 0.5) + 0.2
        knowledge.reported(job, report(job, step, 0.1, epoch=1 + step // 50, loss=loss), float(step))
    curve = knowledge.curve(job, (1,))
    true_rest = steps_to_rest([(step, 1.0 / (0.01 * step + 0.5) + 0.2) for step in range(10, 1000, 10)], 48.0)
    assert true_rest is not None
    assert knowledge.remaining_steps(job, curve, 1000.0, usual_s=1.0) == pytest.approx(max(true_rest - 990, 1), rel=0.5)


def test_a_job_that_declares_nothing_is_assumed_to_be_half_done(knowledge: Knowledge) -> None:
    job = running(changed_s=0.0)
    measure(knowledge, job, 0.5)
    curve = knowledge.curve(job, (1,))
    assert knowledge.remaining_steps(job, curve, 300.0, usual_s=60.0) == pytest.approx(600.0)


@pytest.mark.parametrize(
    "losses",
    [
        [-float(step) for step in range(20)],
        [0.0] * 20,
        [1e300 * step for step in range(20)],
        [float(step) for step in range(20)],
        [1e-300] * 20,
    ],
)
def test_odd_losses_give_a_number_or_none(losses: list[float]) -> None:
    rest = steps_to_rest(list(enumerate(losses)), 5.0)
    assert rest is None or (math.isfinite(rest) and rest >= 0)


def test_learned_speeds_survive_a_controller_restart(knowledge: Knowledge) -> None:
    job = running()
    knowledge.restarts.start_ordered("a", 0.0)
    measure(knowledge, job, 0.1)
    document = json.loads(json.dumps(knowledge.document()))
    later = Knowledge(CLUSTER, restart_prior_s=10.0)
    later.restore(document, ["a", "b"])
    assert later.curve(job, (1,)).times == knowledge.curve(job, (1,)).times
    assert later.restarts.estimate_s("a") == knowledge.restarts.estimate_s("a")
    assert later.is_movable(job)
    for added_later in ("apart", "families", "batches", "kinds"):
        older = Knowledge(CLUSTER, restart_prior_s=10.0)
        older.restore({key: value for key, value in document.items() if key != added_later}, ["a"])
        assert older.is_movable(job), f"a controller without {added_later} wrote it"
