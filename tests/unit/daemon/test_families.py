"""Jobs of one family: what one of them has shown is expected of the next."""

from __future__ import annotations

import json

import pytest
from tests.unit.daemon.test_scheduling import World

from weft.control.state import Job
from weft.core.cluster import Cluster
from weft.daemon.knowledge import Knowledge


def test_a_job_of_a_known_family_is_not_made_to_explore_from_its_smallest_size() -> None:
    world = World(4)
    world.submit("first", max_workers=4, total_steps=1000, title="train-1")
    for _ in range(3):
        world.decide()
        world.run("first", step_s_alone=2.0)
        world.now_s += 100.0
    assert world.workers("first") == 4
    world.knowledge.finished(world.state.jobs["first"])
    curves = {title: world.knowledge.curve(_submitted(world, title), (1,)).times for title in ("train-2", "other-1")}
    assert {size: time.step_s for size, time in curves["train-2"].items() if size != 3} == {1: 2.0, 2: 1.0, 4: 0.5}
    assert list(curves["other-1"]) == [1]


def _submitted(world: World, title: str) -> Job:
    world.submit(title, max_workers=4, total_steps=10, title=title)
    return world.state.jobs[title]


@pytest.mark.parametrize(("title", "user"), [("other-2", "ana"), ("train-2", "bob"), ("", "ana")])
def test_only_jobs_of_the_same_owner_and_name_are_relatives(title: str, user: str) -> None:
    world = World(2)
    world.has_run("train-1", step_s=2.0, user="ana")
    world.submit("b", total_steps=10, title=title, user=user)
    assert not world.knowledge.is_length_known(world.state.jobs["b"])


def test_few_long_steps_are_not_taken_for_a_short_job() -> None:
    world = World(1)
    world.has_run("slow-1", step_s=100.0)
    world.has_run("fast-1", step_s=1.0)
    world.submit("slow", max_workers=2, total_steps=20, title="slow-2")
    world.submit("fast", max_workers=2, total_steps=50, title="fast-2")
    world.decide()
    assert (world.workers("slow"), world.workers("fast")) == (0, 1)


def test_own_measurements_count_more_than_those_of_relatives() -> None:
    world = World(1)
    world.has_run("train-1", step_s=2.0)
    world.submit("a", max_workers=1, title="train-2")
    world.decide()
    world.run("a", step_s_alone=7.0)
    assert world.knowledge.curve(world.state.jobs["a"], (1,)).times[1].step_s == 7.0


def test_undeclared_lengths_follow_those_of_finished_relatives() -> None:
    world = World(1)
    lengths_s = (30.0, 31.0, 32.0)
    for number, length_s in enumerate(lengths_s):
        world.submit(f"job{number}", max_workers=1, total_steps=None, title=f"train-{number}")
        world.decide()
        world.run(f"job{number}", step_s_alone=1.0)
        world.now_s += length_s
        world.complete(f"job{number}")
    world.submit("next", max_workers=1, total_steps=None, title="train-9")
    job = world.state.jobs["next"]
    belief = world.knowledge.belief(job, (1,), world.now_s, usual_s=3600.0)
    assert 30.0 <= belief.remaining_steps <= 64.0
    assert not belief.is_length_known


def test_a_restarted_controller_remembers_families() -> None:
    world = World(2)
    world.has_run("train-1", step_s=2.0)
    saved = json.loads(json.dumps(world.knowledge.document()))
    later = Knowledge(Cluster.uniform(1, 2), restart_prior_s=1.0)
    later.restore(saved, ())
    world.submit("b", total_steps=10, title="train-2", user="")
    assert later.is_length_known(world.state.jobs["b"])


def test_a_job_as_long_as_those_that_run_takes_no_devices_from_them() -> None:
    world = World(2, hold_s=0.0)
    for name in "ab":
        world.submit(name, max_workers=1, total_steps=1000)
    world.decide()
    for name in "ab":
        world.run(name)
    world.now_s += 5.0
    world.submit("c", max_workers=1, total_steps=990)
    world.decide()
    assert [world.workers(name) for name in "abc"] == [1, 1, 0]
