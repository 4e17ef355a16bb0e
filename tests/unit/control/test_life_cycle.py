"""A job's life, step by step."""

from __future__ import annotations

import pytest
from scenario import Scenario, asks_for_decision

from weft.control.reducer import MAX_LOSSES
from weft.control.state import JobState
from weft.control.transitions import LEGAL, IllegalTransition, check_transition
from weft.core.actions import KillWorkers, StartWorkers, StopWorkers
from weft.core.events import (
    CancelRequested,
    DevicesAssigned,
    Fate,
    JobSubmitted,
    NodeFailed,
    NodeRepaired,
    ProgressReported,
    WorkersExited,
    WorkersStarted,
)
from weft.core.job import JobSpec
from weft.core.step_report import Progress


def test_a_submitted_job_waits_and_a_decision_is_requested() -> None:
    one = Scenario()
    assert asks_for_decision(one.submit("a"))
    assert one.where("a") is JobState.PENDING


def test_a_duplicate_submission_event_is_one_job() -> None:
    one = Scenario("a")
    one.assign(a=(0,))
    assert one.submit("a") == ()
    assert one.where("a") is JobState.RUNNING
    one.exit("a", Fate.COMPLETED)
    assert one.submit("a") == ()
    assert len(one.state.jobs) == 1


def test_a_job_with_free_devices_starts_immediately_and_completes() -> None:
    one = Scenario("a")
    assert one.assign(a=(0, 1)) == (StartWorkers("a", 1, (0, 1)),)
    started_s = one.state.now_s
    one.feed(WorkersStarted(one.now_s, "a", 1))
    assert one.job("a").workers_since_s == one.state.now_s
    assert asks_for_decision(one.exit("a", Fate.COMPLETED))
    job = one.job("a")
    assert (job.state, job.started_s, job.finished_s) == (JobState.COMPLETED, started_s, one.state.now_s)
    assert job.attained_device_s == 2 * (one.state.now_s - started_s)
    assert job.num_restarts == 0


def test_a_resized_job_leaves_before_it_starts_again() -> None:
    one = Scenario("a")
    one.assign(a=(0, 1))
    assert one.assign(a=(0, 1, 2, 3)) == (StopWorkers("a", 1),)
    assert one.where("a") is JobState.STOPPING
    assert one.exit("a", Fate.STOPPED) == (StartWorkers("a", 2, (0, 1, 2, 3)),)
    assert (one.where("a"), one.job("a").num_restarts) == (JobState.RUNNING, 1)


def test_no_job_is_started_on_devices_still_in_use() -> None:
    one = Scenario("a", "b")
    one.assign(a=(0, 1))
    assert one.assign(b=(1, 2)) == (StopWorkers("a", 1),)
    assert one.where("b") is JobState.PENDING
    assert one.exit("a", Fate.STOPPED) == (StartWorkers("b", 1, (1, 2)),)
    assert one.where("a") is JobState.PENDING


def test_two_jobs_that_swap_devices_do_not_deadlock() -> None:
    one = Scenario("a", "b")
    one.assign(a=(0, 1), b=(2, 3))
    assert one.assign(a=(2, 3), b=(0, 1)) == (StopWorkers("a", 1), StopWorkers("b", 1))
    assert one.exit("a", Fate.STOPPED) == ()
    assert one.exit("b", Fate.STOPPED) == (StartWorkers("a", 2, (2, 3)), StartWorkers("b", 2, (0, 1)))


def test_a_reverted_decision_restarts_workers_on_their_old_devices() -> None:
    one = Scenario("a")
    one.assign(a=(0, 1))
    one.assign(a=(4, 5))
    assert one.assign(a=(0, 1)) == ()
    assert one.exit("a", Fate.STOPPED) == (StartWorkers("a", 2, (0, 1)),)


def test_repeating_a_decision_restarts_no_job() -> None:
    one = Scenario("a", "b")
    one.assign(a=(0, 1))
    assert one.assign(a=(0, 1)) == ()


def test_a_partner_joins_and_leaves_without_a_restart_of_the_other() -> None:
    one = Scenario("a", "b")
    one.assign(a=(0, 1))
    assert one.pair("a", "b", (0, 1), filler="b") == (StartWorkers("b", 1, (0, 1)),)
    assert (one.job("a").partner, one.job("b").partner) == ("b", "a")
    assert (one.job("a").fills, one.job("b").fills) == (False, True)
    assert one.pair("a", "b", (0, 1), filler="a") == ()
    assert (one.job("a").fills, one.job("b").fills) == (True, False)
    assert one.assign(a=(0, 1)) == (StopWorkers("b", 1),)
    one.exit("b", Fate.STOPPED)
    assert (one.job("a").partner, one.job("a").fills, one.job("a").attempt) == (None, False, 1)


def test_a_new_partner_waits_until_the_old_one_is_gone() -> None:
    one = Scenario("a", "b", "c")
    one.pair("a", "b", (0, 1))
    assert one.pair("a", "c", (0, 1)) == (StopWorkers("b", 1),)
    assert one.job("a").partner == "b"
    assert one.exit("b", Fate.STOPPED) == (StartWorkers("c", 1, (0, 1)),)
    assert one.job("a").partner == "c"


def test_a_pair_moves_to_other_devices_together() -> None:
    one = Scenario("a", "b")
    one.pair("a", "b", (0, 1))
    assert one.pair("a", "b", (4, 5)) == (StopWorkers("a", 1), StopWorkers("b", 1))
    assert one.exit("b", Fate.STOPPED) == (StartWorkers("b", 2, (4, 5)),)
    assert one.exit("a", Fate.STOPPED) == (StartWorkers("a", 2, (4, 5)),)
    assert (one.job("a").partner, one.job("b").partner) == ("b", "a")


@pytest.mark.parametrize(
    "decision",
    [
        DevicesAssigned(9.0, {"a": (0, 1), "b": (1, 2)}),
        DevicesAssigned(9.0, {"a": (0, 0)}),
        DevicesAssigned(9.0, {"a": (7, 8)}),
        DevicesAssigned(9.0, {"a": (-1,)}),
        DevicesAssigned(9.0, {"a": (0, 1), "b": (0, 1)}, {"a": "b"}),
        DevicesAssigned(9.0, {"a": (0, 1), "b": (0, 2)}, {"a": "b", "b": "a"}),
        DevicesAssigned(9.0, {"a": (0, 1)}, {"a": "a"}),
    ],
)
def test_a_decision_with_a_duplicate_or_unknown_device_is_ignored(decision: DevicesAssigned) -> None:
    one = Scenario("a", "b")
    assert one.feed(decision) == ()
    assert one.job("a").wanted == one.job("b").wanted == ()


def test_a_decision_below_a_jobs_minimum_is_ignored() -> None:
    one = Scenario()
    one.feed(JobSubmitted(0.0, JobSpec("a", 0.0, min_workers=2, max_workers=4)))
    assert one.assign(a=(0,)) == ()
    assert one.where("a") is JobState.PENDING


def test_a_failing_script_is_restarted_max_restarts_times_and_then_fails_with_its_reason() -> None:
    one = Scenario("a", max_restarts=2)
    for _ in range(2):
        one.assign(a=(0,))
        assert asks_for_decision(one.exit("a", Fate.FAILED, reason="ZeroDivisionError", exit_code=1))
        assert one.where("a") is JobState.PENDING
    one.assign(a=(0,))
    one.exit("a", Fate.FAILED, reason="ZeroDivisionError", exit_code=1)
    job = one.job("a")
    assert (job.state, job.exit_code, job.num_failures, job.num_restarts) == (JobState.FAILED, 1, 3, 2)
    assert job.reason == "ZeroDivisionError, restarted 2 times"
    once = Scenario("a", max_restarts=1)
    for _ in range(2):
        once.assign(a=(0,))
        once.exit("a", Fate.FAILED, reason="ZeroDivisionError")
    assert once.job("a").reason == "ZeroDivisionError, restarted 1 time"


@pytest.mark.parametrize("fate", [Fate.LOST, Fate.STOPPED])
def test_workers_killed_from_outside_cost_a_restart_and_no_failure(fate: Fate) -> None:
    one = Scenario("a")
    one.assign(a=(0,))
    assert asks_for_decision(one.exit("a", fate))
    assert (one.where("a"), one.job("a").num_failures) == (JobState.PENDING, 0)
    assert one.assign(a=(0,)) == (StartWorkers("a", 2, (0,)),)


def test_a_job_that_vanishes_again_and_again_without_getting_further_is_given_up() -> None:
    one = Scenario("a")
    for attempt in range(1, MAX_LOSSES + 1):
        assert one.where("a") is JobState.PENDING
        one.assign(a=(0,))
        one.feed(ProgressReported(one.now_s, "a", attempt, Progress(10)))
        one.exit("a", Fate.LOST, reason="out of memory")
    assert one.where("a") is JobState.FAILED
    assert one.job("a").reason == "out of memory, 5 times in a row without progress beyond step 10"


def test_a_job_that_gets_further_each_time_is_never_given_up() -> None:
    one = Scenario("a")
    for attempt in range(1, 4 * MAX_LOSSES):
        one.assign(a=(0,))
        one.feed(ProgressReported(one.now_s, "a", attempt, Progress(10 * attempt)))
        one.exit("a", Fate.LOST)
    assert one.where("a") is JobState.PENDING


def test_a_waiting_job_is_canceled_immediately() -> None:
    one = Scenario("a")
    assert asks_for_decision(one.feed(CancelRequested(one.now_s, "a", "not needed")))
    assert (one.where("a"), one.job("a").reason) == (JobState.CANCELLED, "not needed")


@pytest.mark.parametrize("fate", [Fate.STOPPED, Fate.FAILED, Fate.LOST])
def test_a_running_job_is_canceled_when_its_workers_are_gone_however_they_ended(fate: Fate) -> None:
    one = Scenario("a", max_restarts=3)
    one.assign(a=(0,))
    assert one.feed(CancelRequested(one.now_s, "a")) == (StopWorkers("a", 1),)
    assert one.where("a") is JobState.STOPPING
    assert asks_for_decision(one.exit("a", fate))
    assert one.where("a") is JobState.CANCELLED


def test_a_second_cancel_kills_and_a_third_changes_nothing() -> None:
    one = Scenario("a")
    one.assign(a=(0,))
    one.feed(CancelRequested(one.now_s, "a"))
    assert one.feed(CancelRequested(one.now_s, "a")) == (KillWorkers("a", 1),)
    assert one.feed(CancelRequested(one.now_s, "a")) == ()
    one.exit("a", Fate.LOST)
    assert one.feed(CancelRequested(one.now_s, "a")) == ()
    assert one.where("a") is JobState.CANCELLED


def test_a_job_cancelled_during_a_move_is_not_restarted() -> None:
    one = Scenario("a")
    one.assign(a=(0,))
    one.assign(a=(1,))
    assert one.feed(CancelRequested(one.now_s, "a")) == ()
    assert one.assign(a=(2,)) == ()
    one.exit("a", Fate.STOPPED)
    assert one.where("a") is JobState.CANCELLED


def test_a_job_that_completes_while_it_is_stopped_is_complete() -> None:
    for why in ("resize", "cancel"):
        one = Scenario("a")
        one.assign(a=(0,))
        if why == "resize":
            one.assign(a=(1,))
        else:
            one.feed(CancelRequested(one.now_s, "a"))
        one.exit("a", Fate.COMPLETED)
        assert one.where("a") is JobState.COMPLETED


def test_a_script_that_fails_during_a_resize_restarts_on_its_new_devices() -> None:
    one = Scenario("a", max_restarts=1)
    one.assign(a=(0,))
    one.assign(a=(1,))
    assert one.exit("a", Fate.FAILED) == (StartWorkers("a", 2, (1,)),)
    assert one.job("a").num_failures == 1


def test_late_news_of_an_old_attempt_changes_nothing() -> None:
    one = Scenario("a")
    one.assign(a=(0,))
    one.assign(a=(1,))
    one.exit("a", Fate.STOPPED)
    before = one.job("a")
    for event in (
        WorkersStarted(one.now_s, "a", 1),
        ProgressReported(one.now_s, "a", 1, Progress(99)),
        WorkersExited(one.now_s, "a", 1, Fate.FAILED),
        WorkersExited(one.now_s, "a", 7, Fate.COMPLETED),
        WorkersExited(one.now_s, "nobody", 1, Fate.COMPLETED),
    ):
        assert one.feed(event) == ()
        assert one.job("a") is before


def test_a_duplicate_exit_event_counts_once() -> None:
    one = Scenario("a", max_restarts=1)
    one.assign(a=(0,))
    one.exit("a", Fate.FAILED)
    assert one.exit("a", Fate.FAILED) == ()
    assert (one.where("a"), one.job("a").num_failures) == (JobState.PENDING, 1)


def test_a_failed_node_costs_its_jobs_a_restart_and_the_others_nothing() -> None:
    one = Scenario("a", "b", "c")
    one.assign(a=(0, 1), b=(4, 5))
    one.feed(DevicesAssigned(one.now_s, {"a": (0, 1), "b": (4, 5), "c": (2, 3)}))
    actions = one.feed(NodeFailed(one.now_s, 1))
    assert KillWorkers("b", 1) in actions
    assert asks_for_decision(actions)
    assert (one.where("a"), one.where("b"), one.where("c")) == (JobState.RUNNING, JobState.STOPPING, JobState.RUNNING)
    one.exit("b", Fate.FAILED, reason="connection reset by peer")
    assert (one.where("b"), one.job("b").num_failures, one.job("b").num_losses) == (JobState.PENDING, 0, 0)
    assert one.assign(a=(0, 1), b=(4, 5), c=(2, 3)) == (), "nobody is put on a failed node"
    assert asks_for_decision(one.feed(NodeRepaired(one.now_s, 1)))
    assert one.assign(a=(0, 1), b=(4, 5), c=(2, 3)) == (StartWorkers("b", 2, (4, 5)),)


@pytest.mark.parametrize("event", [NodeFailed(3.0, 7), NodeFailed(3.0, -1), NodeRepaired(3.0, 0), NodeRepaired(3.0, 9)])
def test_news_of_nodes_that_are_not_there_or_not_failed_change_nothing(event: NodeFailed | NodeRepaired) -> None:
    one = Scenario("a")
    before = one.state
    assert one.feed(event) == ()
    assert (one.state.cluster, one.state.jobs) == (before.cluster, before.jobs)


def test_a_clock_set_back_an_hour_does_not_undo_time() -> None:
    one = Scenario("a")
    one.feed(DevicesAssigned(5000.0, {"a": (0,)}))
    one.feed(WorkersExited(1400.0, "a", 1, Fate.COMPLETED))
    assert (one.state.now_s, one.job("a").finished_s) == (5000.0, 5000.0)


def test_reports_update_a_jobs_progress() -> None:
    one = Scenario("a")
    one.assign(a=(0,))
    one.feed(ProgressReported(one.now_s, "a", 1, Progress(7, 100, step_s=0.5, exposed_s=0.1, loss=2.0)))
    one.feed(ProgressReported(one.now_s, "a", 1, Progress(8, step_s=0.4)))
    job = one.job("a")
    assert job.progress == Progress(8, 100, step_s=0.4, exposed_s=0.0, loss=2.0)


def test_no_transition_leaves_a_final_state() -> None:
    for before, ways in LEGAL.items():
        assert before not in ways
        assert bool(ways) != before.is_final
    with pytest.raises(IllegalTransition, match="from COMPLETED to RUNNING: expected one of none, it has finished"):
        check_transition("a", JobState.COMPLETED, JobState.RUNNING)
