"""Reasons while one job makes room for another: both must be true until the workers have exited."""

from __future__ import annotations

from tests.unit.daemon.test_scheduling import World

from weft.control.state import JobState
from weft.core.events import Fate, WorkersExited
from weft.core.reason import in_words
from weft.daemon import job_reasons


def evicted() -> World:
    """An urgent job was given the only device, and the job that has it is still stopping."""
    world = World(1, hold_s=0.0)
    world.submit("a", max_workers=1)
    world.decide()
    world.run("a")
    world.now_s += 100.0
    world.submit("urgent", max_workers=1, priority=9)
    world.happen(world.scheduler.decide(world.state, world.knowledge, world.now_s).event)
    return world


def test_a_job_that_made_room_names_the_other_one_while_it_stops_and_while_it_waits() -> None:
    world = evicted()
    assert world.state.jobs["a"].state is JobState.STOPPING
    for _ in range(2):
        assert (world.state.jobs["a"].reason_code, world.state.jobs["a"].reason) == (
            "Preempted",
            "gave up 1 worker to urgent",
        )
        world.now_s += 1.0
        again = world.scheduler.decide(world.state, world.knowledge, world.now_s)
        assert "a" not in again.event.reasons, again.event.reasons
        world.decide()
    assert world.state.jobs["a"].state is JobState.PENDING


def test_a_job_whose_devices_are_not_free_yet_does_not_claim_to_have_workers() -> None:
    world = evicted()
    job = world.state.jobs["urgent"]
    assert (job.state, job.devices) == (JobState.PENDING, ())
    reason = job_reasons.until_its_start(job)
    assert reason is not None
    assert in_words(reason) == "waits to start with 1 worker until the previous workers have exited"
    world.happen(WorkersExited(world.now_s, "a", 1, Fate.STOPPED, 75))
    assert job_reasons.until_its_start(world.state.jobs["urgent"]) is None
