"""One decision, live or simulated: jobs that need not move stay, and jobs that must not be touched are not."""

from __future__ import annotations

from dataclasses import replace

import pytest
from scenario import Scenario

from weft.control.decision import Belief, DecisionResult, SharingTerms, decide
from weft.control.state import JobState
from weft.core.cluster import Cluster
from weft.core.events import CancelRequested, Fate, JobSubmitted
from weft.core.job import JobSpec
from weft.core.snapshot import Allocation, Snapshot
from weft.core.speed import SpeedCurve, StepTime
from weft.elastic import POLICIES, policy_named

CURVE = SpeedCurve({size: StepTime(1.0 / size) for size in range(1, 9)})


class Answer:
    """A policy with a fixed answer, which records the snapshot it was given."""

    def __init__(self, workers: dict[str, int] | None = None, **values: object) -> None:
        self._allocation = Allocation(workers or {}, **values)  # type: ignore[arg-type]
        self.shown = Snapshot(0.0, Cluster((1,)), ())

    def decide(self, snapshot: Snapshot) -> Allocation:
        self.shown = snapshot
        return self._allocation


def decided(one: Scenario, answer: Answer, now_s: float = 9.0, **values: object) -> DecisionResult:
    beliefs = {name: Belief(CURVE, 1000.0, 1.0) for name in one.state.jobs.active}
    return decide(one.state, beliefs, answer, now_s, **values)  # type: ignore[arg-type]


def test_jobs_keep_their_devices_when_others_come() -> None:
    one = Scenario("a", "b")
    one.assign(a=(2, 3))
    assert decided(one, Answer({"a": 2, "b": 4})).event.devices == {"a": (2, 3), "b": (4, 5, 6, 7)}


def test_an_allocation_that_is_in_force_or_in_progress_changes_nothing() -> None:
    one = Scenario("a", "b")
    assert not decided(one, Answer()).changed
    one.assign(a=(0, 1))
    assert not decided(one, Answer({"a": 2, "b": 0})).changed
    one.assign(a=(0, 1, 2))
    assert one.where("a") is JobState.STOPPING
    again = decided(one, Answer({"a": 3}))
    assert not again.changed
    assert again.event.devices == {"a": (0, 1, 2)}


def test_a_job_that_is_moving_is_not_sent_elsewhere() -> None:
    one = Scenario("a", "b")
    one.assign(a=(0, 1))
    one.assign(a=(4, 5))
    assert decided(one, Answer({"a": 2, "b": 1})).event.devices["a"] == (4, 5)


def test_a_pair_gets_the_same_devices_and_its_roles() -> None:
    one = Scenario("a", "b")
    result = decided(one, Answer({"a": 2, "b": 2}, pairs=(("b", "a"),), fillers=frozenset({"b"})))
    assert result.event.devices["a"] == result.event.devices["b"]
    assert (result.event.partners, result.event.fillers) == ({"a": "b", "b": "a"}, {"b"})
    one.feed(result.event)
    assert not decided(one, Answer({"a": 2, "b": 2}, pairs=(("a", "b"),), fillers=frozenset({"b"}))).changed
    turns = decided(one, Answer({"a": 2, "b": 2}, pairs=(("a", "b"),)))
    assert turns.changed == {"b"}
    assert one.feed(turns.event) == ()


def test_of_two_jobs_that_pair_up_the_one_submitted_first_stays() -> None:
    one = Scenario("z", "a")  # ids of real jobs are random: their order says nothing
    one.assign(z=(0, 1), a=(4, 5))
    assert decided(one, Answer({"z": 2, "a": 2}, pairs=(("a", "z"),))).event.devices == {"z": (0, 1), "a": (0, 1)}


def test_a_cancelled_job_gets_nothing_and_its_devices_are_given_away() -> None:
    one = Scenario("a", "b")
    one.assign(a=(0, 1, 2, 3, 4, 5, 6, 7))
    one.feed(CancelRequested(one.now_s, "a"))
    answer = Answer({"b": 8})
    assert decided(one, answer).event.devices == {"b": (0, 1, 2, 3, 4, 5, 6, 7)}
    assert [view.id for view in answer.shown.jobs] == ["b"]
    assert answer.shown.num_devices == 8


# What a policy is told ---------------------------------------------------------------------------------------------


def view_of(one: Scenario, name: str, now_s: float) -> tuple[int, float, float]:
    answer = Answer()
    decided(one, answer, now_s)
    view = next(view for view in answer.shown.jobs if view.id == name)
    return view.workers, view.waited_s, view.settled_s


def test_a_job_counts_as_waiting_from_the_moment_its_last_worker_is_gone() -> None:
    one = Scenario("a", "b")
    submitted_s = one.job("a").submitted_s
    assert view_of(one, "a", 100.0) == (0, 100.0 - submitted_s, 0.0)
    one.assign(a=(0, 1))
    started_s = one.state.now_s
    assert view_of(one, "a", 100.0) == (2, 0.0, 100.0 - started_s)
    one.assign()
    assert one.where("a") is JobState.STOPPING
    # It ran until now: counted as a wait, the run of a day would make it overdue the moment it is paused.
    assert view_of(one, "a", 100.0) == (0, 0.0, 0.0)
    one.exit("a", Fate.STOPPED)
    assert view_of(one, "a", 100.0) == (0, 100.0 - one.state.now_s, 0.0)


def test_a_job_being_resized_is_seen_at_its_new_size_and_not_settled() -> None:
    one = Scenario("a")
    one.assign(a=(0, 1))
    one.assign(a=(0, 1, 2, 3))
    assert view_of(one, "a", 100.0) == (4, 0.0, 0.0)
    one.exit("a", Fate.STOPPED)
    assert view_of(one, "a", 100.0) == (4, 0.0, 100.0 - one.state.now_s)


def test_no_new_pair_is_formed_while_every_job_could_have_a_device() -> None:
    one = Scenario("a", "b")
    answer = Answer()
    decided(one, answer, sharing=SharingTerms(0.001))
    assert answer.shown.alone == {"a", "b"}
    one.pair("a", "b", (0, 1))
    decided(one, answer, sharing=SharingTerms(0.001))
    assert answer.shown.alone == frozenset()
    for number in range(9):
        one.submit(f"more{number}")
    decided(one, answer, sharing=SharingTerms(0.001))
    assert answer.shown.alone == frozenset()


# Jobs that must not be touched ---------------------------------------------------------------------------------------


def test_untouchable_jobs_stay_and_others_are_placed_around_them() -> None:
    one = Scenario("a", "b", "c")
    one.assign(a=(1, 2), b=(4,))
    answer = Answer({"b": 4, "c": 2})
    result = decided(one, answer, untouchable={"a"})
    assert [view.id for view in answer.shown.jobs] == ["b", "c"]
    assert answer.shown.num_devices == 6
    assert result.event.devices == {"a": (1, 2), "b": (4, 5, 6, 7), "c": (0, 3)}
    assert result.untouched == {"a"}


def test_an_untouchable_job_keeps_its_partner_and_role() -> None:
    one = Scenario("a", "b", "c")
    one.pair("a", "b", (0, 1), filler="b")
    answer = Answer({"c": 6})
    result = decided(one, answer, untouchable={"a"})
    assert answer.shown.num_devices == 6
    assert result.event.devices == {"a": (0, 1), "b": (0, 1), "c": (2, 3, 4, 5, 6, 7)}
    assert (result.event.partners, result.event.fillers) == ({"a": "b", "b": "a"}, {"b"})
    assert result.changed == {"c"}
    one.feed(result.event)
    assert one.job("a").attempt == one.job("b").attempt == 1


def test_jobs_a_policy_wants_kept_are_not_moved_to_make_room() -> None:
    one = Scenario("a", "b")
    one.submit("c")
    one.assign(a=(0,), b=(4,))
    moved = decided(one, Answer({"a": 1, "b": 1, "c": 4}))
    assert moved.changed > {"c"}, "this test shows nothing any more"
    kept = decided(one, Answer({"a": 1, "b": 1, "c": 4}, kept=frozenset("ab")))
    assert kept.changed == {"c"}
    assert len(set(kept.event.devices["c"]) - {0, 4}) == 4


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("quota", [0, 1, 2, 3])
def test_no_policy_takes_devices_from_an_untouchable_job_over_its_quota(policy: str, quota: int) -> None:
    """The operator lowered the quota while the job ran; it is over the quota until it can be stopped."""
    one = Scenario()
    for number, user in enumerate(("ada", "ada", "bo", "bo")):
        spec = JobSpec(f"j{number}", 0.0, max_workers=8, requested_workers=8, user=user)
        one.feed(JobSubmitted(one.now_s, spec))
    one.assign(j0=(0, 1), j2=(4, 5, 6))
    result = decided(one, policy_named(policy), untouchable={"j0"}, quotas={"ada": quota})  # type: ignore[arg-type]
    assert result.event.devices["j0"] == (0, 1)
    assert len(result.event.devices.get("j1", ())) <= max(quota - 2, 0)
    given = [device for devices in result.event.devices.values() for device in devices]
    assert len(given) == len(set(given))
    one.feed(result.event)
    assert one.job("j0").attempt == 1


def test_a_failed_node_is_not_used_around_untouchable_jobs() -> None:
    one = Scenario("a", "b")
    one.assign(a=(4,))
    one.state = replace(one.state, cluster=one.state.cluster.without({0}))
    assert decided(one, Answer({"b": 3}), untouchable={"a"}).event.devices == {"a": (4,), "b": (5, 6, 7)}


def test_the_policy_is_not_called_when_no_job_can_be_touched() -> None:
    one = Scenario("a")
    one.assign(a=(0, 1, 2, 3, 4, 5, 6, 7))
    answer = Answer({"nobody": 99})
    result = decided(one, answer, untouchable={"a"})
    assert not result.changed
    assert result.event.devices == {"a": (0, 1, 2, 3, 4, 5, 6, 7)}
