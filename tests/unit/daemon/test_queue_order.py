"""Jobs that need several devices at once are not passed over, and every waiting job knows its place."""

from __future__ import annotations

import pytest
from tests.unit.daemon.test_scheduling import World

from weft.control.queue_order import PATIENCE_S, QueuePlace, place_in_words
from weft.core.events import Fate, WorkersExited
from weft.daemon.knowledge import Knowledge
from weft.elastic.registry import POLICIES


def finish(world: World, name: str) -> None:
    world.happen(WorkersExited(world.now_s, name, world.state.jobs[name].attempt, Fate.COMPLETED))


def test_jobs_of_unknown_length_do_not_start_ahead_of_a_blocked_job_forever() -> None:
    world = World(2)
    world.submit("a", max_workers=1, total_steps=None)
    world.decide()
    world.submit("two", max_workers=2, min_workers=2, total_steps=None)
    world.now_s += PATIENCE_S + 1
    for number in range(3):
        world.submit(f"later{number}", max_workers=1, total_steps=None)
        world.now_s += 60.0
        world.decide()
        assert world.workers(f"later{number}") == 0
    later = world.state.jobs["later0"]
    assert later.reason_code == "UnknownLength"
    assert later.reason.startswith("waits so that it does not delay two; ")
    finish(world, "a")
    world.decide()
    assert world.workers("two") == 2


def test_a_job_that_is_known_to_end_in_time_is_not_held_back() -> None:
    world = World(2)
    world.has_run("train", step_s=1.0)
    world.submit("a", max_workers=1, total_steps=10_000)
    world.decide()
    world.submit("two", max_workers=2, min_workers=2)
    world.now_s += PATIENCE_S + 1
    world.submit("short", max_workers=1, total_steps=100, title="train-2")
    world.submit("unmeasured", max_workers=1, total_steps=100)
    world.submit("long", max_workers=1, total_steps=1_000_000, title="train-3")
    world.decide()
    assert [world.workers(name) for name in ("short", "unmeasured", "long")] == [1, 0, 0]


def test_a_job_that_would_end_after_the_blocked_one_can_start_is_held_back() -> None:
    """The start of a job that runs is over: the devices become free by so much sooner."""
    world = World(2)
    world.knowledge = Knowledge(world.state.cluster, restart_prior_s=60.0)
    world.has_run("train", step_s=1.0)
    world.knowledge.of("a").can_resume = False
    world.submit("a", max_workers=1, total_steps=1000, title="train-1")
    world.decide()
    world.now_s += 100.0  # in 1000 s, it ends
    world.submit("two", max_workers=2, min_workers=2)
    world.submit("later", max_workers=1, total_steps=980, title="train-2")  # with its start, it takes 1040 s
    world.decide()
    assert (world.workers("two"), world.workers("later")) == (0, 0)
    assert world.scheduler.queue["two"].expected_start_s == 1100.0


def test_devices_that_the_blocked_job_will_leave_free_are_used() -> None:
    world = World(4)
    world.submit("a", max_workers=2, min_workers=2, total_steps=10_000)
    world.decide()
    world.submit("three", max_workers=3, min_workers=3)
    world.now_s += PATIENCE_S + 1
    world.submit("long", max_workers=4, total_steps=1_000_000)
    world.decide()
    assert (world.workers("three"), world.workers("long")) == (0, 1)


@pytest.mark.parametrize("policy", POLICIES)
def test_jobs_of_unknown_length_do_not_start_ahead_of_one_that_several_free_devices_cannot_hold(policy: str) -> None:
    """The devices become free together, and an earlier job takes one of them."""
    world = World(2, policy=policy)
    world.submit("first", max_workers=2, min_workers=2, total_steps=None)
    world.decide()
    for name, num in (("a", 1), ("two", 2), ("later", 1)):
        world.submit(name, max_workers=num, min_workers=num, total_steps=None)
    world.now_s += PATIENCE_S + 1
    finish(world, "first")
    world.decide()
    assert [world.workers(name) for name in ("a", "two", "later")] == [1, 0, 0]
    if policy != "fifo":
        assert world.state.jobs["two"].reason == "waits for 2 devices; a must end first"
        assert world.state.jobs["later"].reason_code == "UnknownLength"
    finish(world, "a")
    world.decide()
    assert world.workers("two") == 2


def test_a_short_job_starts_ahead_of_one_that_several_free_devices_cannot_hold() -> None:
    world = World(2, policy="exact")
    world.has_run("train", step_s=1.0)
    world.submit("a", max_workers=1, total_steps=10_000, title="train-1")
    world.submit("two", max_workers=2, min_workers=2)
    world.submit("long", max_workers=1, total_steps=1_000_000, title="train-2")
    world.submit("short", max_workers=1, total_steps=100, title="train-3")
    world.decide()
    assert [world.workers(name) for name in ("a", "two", "long", "short")] == [1, 0, 0, 1]


@pytest.mark.parametrize("policy", ["balanced", "exact", "doubling", "optimus", "afs", "equal"])
def test_a_stream_of_small_jobs_does_not_keep_a_larger_one_waiting(policy: str) -> None:
    world = World(2, policy=policy, hold_s=0.0)
    for name in ("a", "b"):
        world.submit(name, max_workers=1, total_steps=1000)
    world.decide()
    world.submit("two", max_workers=2, min_workers=2, total_steps=1000)
    for number, first in enumerate(("a", "b")):
        for name in list(world.state.jobs.active):
            if world.workers(name):
                world.run(name)
        world.now_s += 10.0
        world.submit(f"later{number}", max_workers=1, total_steps=1000)
        world.submit(f"last{number}", max_workers=1, total_steps=1000)
        finish(world, first)
        world.decide()
    for name in list(world.state.jobs.active):
        if world.workers(name):
            world.run(name)
    world.decide()
    assert world.state.jobs["two"].started_s is not None


def test_waiting_jobs_show_their_place_and_expected_start() -> None:
    world = World(2)
    world.submit("a", max_workers=2, min_workers=2, total_steps=1000)
    world.decide()
    world.run("a")
    for name in ("b", "c", "d"):
        world.submit(name, max_workers=2, min_workers=2, total_steps=None)
    world.decide()
    queue = world.scheduler.queue
    assert {name: place.position for name, place in queue.items()} == {"b": 1, "c": 2, "d": 3}
    starts = [place.expected_start_s for place in queue.values()]
    assert None not in starts
    assert starts == sorted(starts, key=float)  # type: ignore[arg-type]
    assert queue["b"].is_certain
    assert not queue["c"].is_certain


def test_a_script_that_cannot_be_resized_gets_the_best_size_immediately() -> None:
    world = World(2)
    world.knowledge.of("a").can_resume = False
    world.submit("a", max_workers=2, total_steps=None)
    world.decide()
    assert world.workers("a") == 2


def test_a_script_that_cannot_be_resized_leaves_room_for_other_jobs() -> None:
    world = World(2)
    for name in ("a", "b"):
        world.knowledge.of(name).can_resume = False
        world.submit(name, max_workers=2, total_steps=None)
    world.decide()
    assert (world.workers("a"), world.workers("b")) == (1, 1)


def test_no_start_is_promised_to_a_job_that_may_take_devices_from_one_of_lower_priority() -> None:
    world = World(1, hold_s=60.0)
    world.has_run("train", step_s=1.0)
    world.submit("a", max_workers=1, total_steps=10_000, title="train-1")
    world.decide()
    world.run("a")
    world.now_s += 10.0
    world.submit("same", max_workers=1, total_steps=100, title="train-2")
    world.submit("urgent", max_workers=1, total_steps=100, title="train-3", priority=5)
    world.decide()
    assert world.workers("urgent") == 0  # the other one was just started
    urgent, same = (world.scheduler.queue[name] for name in ("urgent", "same"))
    assert (urgent.position, urgent.may_preempt, urgent.is_certain) == (1, True, False)
    assert (same.position, same.may_preempt, same.is_certain) == (2, False, False)
    assert place_in_words(urgent, world.now_s) == (
        "number 1 in the queue; its start time is unknown, since it may take devices from jobs of lower priority"
    )
    world.now_s += 60.0
    world.decide()
    assert world.workers("urgent") == 1


def test_an_expected_start_says_what_it_assumes() -> None:
    words = place_in_words(QueuePlace(2, 130.0, is_certain=True), 100.0)
    assert (
        words
        == "number 2 in the queue, expected to start in about 30 s if running jobs keep their devices until they end"
    )


@pytest.mark.parametrize("quotas", [{}, {"ana": 1}])
def test_no_start_is_promised_where_a_users_quota_may_hold_jobs_back(quotas: dict[str, int]) -> None:
    world = World(1, hold_s=60.0, quotas=quotas)
    world.submit("a", max_workers=1, total_steps=1000)
    world.decide()
    world.run("a")
    world.submit("b", max_workers=1, total_steps=1000)
    world.decide()
    assert world.scheduler.queue["b"].is_certain == (not quotas)


def test_no_devices_are_kept_for_a_job_that_only_its_users_quota_holds_back() -> None:
    world = World(2, quotas={"ana": 1})
    world.submit("a", max_workers=1, total_steps=None)
    world.decide()
    world.submit("beyond", max_workers=2, min_workers=2, total_steps=None, user="ana")
    world.now_s += PATIENCE_S + 1
    world.submit("later", max_workers=1, total_steps=None)
    world.decide()
    assert (world.workers("beyond"), world.workers("later")) == (0, 1)


def test_devices_are_kept_until_both_they_and_the_users_quota_are_free() -> None:
    world = World(4, quotas={"ana": 2})
    world.submit("ana1", max_workers=2, min_workers=2, total_steps=None, user="ana")
    world.submit("other", max_workers=1, total_steps=None)
    world.decide()
    world.submit("ana2", max_workers=2, min_workers=2, total_steps=None, user="ana")
    world.now_s += PATIENCE_S + 1
    for name in ("later", "last"):
        world.submit(name, max_workers=1, total_steps=None)
    world.decide()
    assert (world.workers("later"), world.workers("last")) == (1, 0)
    finish(world, "ana1")
    world.decide()
    assert (world.workers("ana2"), world.workers("last")) == (2, 0)
