"""A forecast that starts with the wrong queue, or changes it, is worse than none."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from weft.control.invariants import check
from weft.control.reducer import reduce
from weft.control.state import State
from weft.core.cluster import Cluster
from weft.core.events import CancelRequested, DevicesAssigned, JobSubmitted, WorkersStarted
from weft.core.job import JobSpec
from weft.core.speed import StepTime
from weft.elastic.registry import POLICIES
from weft.errors import UsageError
from weft.sim import forecast_process
from weft.sim.queue_forecast import KnownJob, Question, Queue, assumptions, forecast, left_out

NOW_S = 1000.0
SPEEDS = {1: StepTime(1.0), 2: StepTime(0.55), 4: StepTime(0.3)}


def known(remaining_steps: float, **more: Any) -> KnownJob:
    values: dict[str, Any] = {"measured": SPEEDS, "expected": SPEEDS, "is_length_known": True, "is_fixed": False}
    return KnownJob(remaining_steps=remaining_steps, **{**values, **more})


def a_queue(num_waiting: int = 1, num_devices: int = 4, **more: Any) -> Queue:
    """One job on two devices, and others that wait."""
    state = State(Cluster((num_devices,)))
    ids = ["running", *(f"waiting{number}" for number in range(num_waiting))]
    for number, job_id in enumerate(ids):
        spec = JobSpec(job_id, float(number), max_workers=4, requested_workers=2)
        state, _ = reduce(state, JobSubmitted(float(number), spec, name=f"name of {job_id}"))
    state, _ = reduce(state, DevicesAssigned(500.0, {"running": (0, 1)}))
    state, _ = reduce(state, WorkersStarted(500.0, "running", 1))
    jobs = {"running": known(100.0), **{job_id: known(50.0) for job_id in ids[1:]}}
    return replace(Queue(state, NOW_S, jobs, "balanced", 10.0, 60.0, 2.0, None), **more)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("devices", [None, 1, 2, 8])
def test_every_job_ends_once_under_every_policy_and_size(policy: str, devices: int | None) -> None:
    queue = a_queue(3)
    before = queue.state
    plan = forecast(queue, Question(policy, devices))
    assert queue.state is before
    assert (plan["policy"], plan["devices"]) == (policy, devices or 4)
    assert {job["id"] for job in plan["jobs"]} == set(queue.known)
    assert plan["makespan_s"] == max(job["end_s"] for job in plan["jobs"])
    for job in plan["jobs"]:
        assert 0 <= job["start_s"] < job["end_s"]
        assert all(1 <= workers <= (devices or 4) for _, workers in job["workers"])
        assert [time_s for time_s, _ in job["workers"]] == sorted(time_s for time_s, _ in job["workers"])


def test_a_running_job_continues_without_a_restart_and_from_its_progress() -> None:
    queue = a_queue(0, num_devices=2)
    (job,) = forecast(queue, Question())["jobs"]
    assert (job["start_s"], job["name"]) == (0.0, "name of running")
    assert job["workers"] == [[0.0, 2]]
    assert job["end_s"] == pytest.approx(100 * 0.55)
    more = {**queue.known, "running": replace(queue.known["running"], remaining_steps=200.0)}
    (longer,) = forecast(replace(queue, known=more), Question())["jobs"]
    assert longer["end_s"] == pytest.approx(200 * 0.55)


def test_more_devices_and_another_limit_are_taken_into_account() -> None:
    queue = a_queue(2)
    plan = forecast(queue, Question())
    more = forecast(queue, Question(devices=12))
    assert more["mean_jct_s"] is not None
    assert plan["mean_jct_s"] is not None
    assert more["mean_jct_s"] < plan["mean_jct_s"]
    limited = forecast(queue, Question(jobs={"running": {"max_workers": 1}}))
    (sizes,) = [job["workers"] for job in limited["jobs"] if job["id"] == "running"]
    assert {workers for _, workers in sizes} == {1}


def test_a_job_that_cannot_be_resized_keeps_its_workers() -> None:
    queue = a_queue(2)
    fixed = {**queue.known, "running": known(100.0, is_fixed=True, measured={}, is_length_known=False)}
    plan = forecast(replace(queue, known=fixed), Question())
    (sizes,) = [job["workers"] for job in plan["jobs"] if job["id"] == "running"]
    assert sizes == [[0.0, 2]]
    said = " ".join(assumptions(replace(queue, known=fixed)))
    assert "The length of name of running is not known" in said
    assert "name of running cannot be resized" in said


def test_a_guess_is_called_one_with_the_length_it_falls_back_to() -> None:
    queue = a_queue(4)
    guessed = {job_id: known(50.0, measured={}, is_length_known=False) for job_id in queue.known}
    said = " ".join(assumptions(replace(queue, known=guessed, usual_s=73.0)))
    named = "name of running, name of waiting0, name of waiting1, and 2 more jobs"
    assert f"The lengths of {named} are not known: they are guesses" in said
    assert "or an assumed 73 s." in said
    assert f"The speeds of {named} have not been measured" in said


def test_an_empty_queue_needs_no_assumptions() -> None:
    assert assumptions(replace(a_queue(), state=State(Cluster((2,))), known={})) == []


def test_a_declared_length_is_not_called_unknown_because_no_step_was_measured() -> None:
    state, _ = reduce(State(Cluster((1,))), JobSubmitted(0.0, JobSpec("a", 0.0), total_steps=400))
    queue = replace(a_queue(0), state=state, known={"a": known(400.0, measured={}, is_length_known=False)})
    said = " ".join(assumptions(queue))
    assert "The speed of a has not been measured" in said
    assert "The length of" not in said


def test_canceled_and_stopping_jobs_are_not_waited_for() -> None:
    queue = a_queue(1)
    state, _ = reduce(queue.state, CancelRequested(NOW_S, "running"))
    plan = forecast(replace(queue, state=state), Question())
    assert [job["id"] for job in plan["jobs"]] == ["waiting0"]
    state, _ = reduce(queue.state, DevicesAssigned(NOW_S, {"running": (2, 3), "waiting0": (0,)}))
    check(state)
    plan = forecast(replace(queue, state=state), Question())
    assert {job["id"] for job in plan["jobs"]} == {"running", "waiting0"}


def test_an_impossible_question_is_refused_with_what_was_expected() -> None:
    queue = a_queue(1)
    for question, words in (
        (Question(policy="balancd"), "did you mean 'balanced'"),
        (Question(devices=0), "expected 1 to"),
        (Question(jobs={"unknown": {"weight": 2.0}}), "not running or waiting"),
        (Question(jobs={"running": {"min_workers": 3, "max_workers": 2}}), "min_workers <= max_workers"),
        (Question(devices=2, jobs={"running": {"min_workers": 3}}), "needs at least 3 workers"),
    ):
        with pytest.raises(UsageError, match=words):
            forecast(queue, question)


def test_an_empty_queue_has_an_empty_forecast() -> None:
    plan = forecast(replace(a_queue(), state=State(Cluster((2,))), known={}), Question())
    assert plan == {"policy": "balanced", "devices": 2, "mean_jct_s": None, "makespan_s": None, "jobs": []}


def test_the_forecast_of_another_process_is_the_same_and_its_refusals_too() -> None:
    queue = a_queue(1)
    answer = forecast_process.ask(queue, Question(devices=8), limit_s=600.0)
    assert answer["plan"] == forecast(queue, Question())
    assert answer["whatif"] == forecast(queue, Question(devices=8))
    assert answer["assumptions"] == assumptions(queue)
    with pytest.raises(UsageError, match="there is no policy"):
        forecast_process.ask(queue, Question(policy="nonsense"), limit_s=600.0)


def test_a_forecast_on_devices_of_several_kinds_says_that_it_takes_them_for_one() -> None:
    queue = a_queue(2)
    mixed = Cluster((2, 2), kinds=("T4", "A100"))
    queue = replace(queue, state=replace(queue.state, cluster=mixed))
    assert {job["id"] for job in forecast(queue, Question())["jobs"]} == set(queue.known)
    assert any("equally fast" in sentence for sentence in assumptions(queue))
    assert not any("equally fast" in sentence for sentence in assumptions(a_queue(2)))


def test_a_job_beyond_its_users_quota_does_not_hide_what_becomes_of_the_others() -> None:
    queue = a_queue(1)
    spec = JobSpec("big", 2.0, min_workers=3, max_workers=4, requested_workers=3, user="ana")
    state, _ = reduce(queue.state, JobSubmitted(2.0, spec, name="gpt"))
    queue = replace(queue, state=state, known={**queue.known, "big": known(50.0)}, quotas={"ana": 2})
    assert {job["id"] for job in forecast(queue, Question())["jobs"]} == {"running", "waiting0"}
    said = "gpt would wait until the quota of ana (2) or its minimum (3 workers) changes: it is not in the forecast."
    smaller = Question(jobs={"big": {"min_workers": 1}})
    assert (left_out(queue, Question()), left_out(queue, smaller)) == ([said], [])
    assert {job["id"] for job in forecast(queue, smaller)["jobs"]} == {"running", "waiting0", "big"}
    assert forecast_process.ask(queue, smaller, limit_s=600.0)["assumptions"][0] == said
    # One that runs and cannot be stopped keeps its workers.
    fixed = {**queue.known, "running": known(100.0, is_fixed=True)}
    kept = forecast(replace(queue, known=fixed, quotas={"ana": 2, "": 1}), Question())
    assert "running" in {job["id"] for job in kept["jobs"]}


def test_the_partner_of_a_job_beyond_its_users_quota_keeps_the_devices_alone() -> None:
    queue = a_queue(1)
    spec = JobSpec("big", 2.0, min_workers=2, max_workers=2, requested_workers=2, user="ana")
    state, _ = reduce(queue.state, JobSubmitted(2.0, spec))
    pair = {"running": "big", "big": "running"}
    state, _ = reduce(state, DevicesAssigned(600.0, {"running": (0, 1), "big": (0, 1)}, pair))
    check(state)
    queue = replace(queue, state=state, known={**queue.known, "big": known(50.0)}, quotas={"ana": 1}, handover_s=0.001)
    plan = forecast(queue, Question())
    assert {job["id"] for job in plan["jobs"]} == {"running", "waiting0"}
