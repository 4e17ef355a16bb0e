"""The simulated engine keeps the promises of every engine, on a clock that is set by hand."""

from __future__ import annotations

import pytest

from weft.core.cluster import Cluster
from weft.core.engine import Engine, StartOrder
from weft.core.events import Fate, WorkersExited, WorkersStarted
from weft.core.job import JobSpec, Launch
from weft.core.speed import StepTime
from weft.perf.crossover import filler_speed, turns_speed
from weft.sim.replay_options import SimulationOptions
from weft.sim.simulated_engine import SimulatedEngine
from weft.sim.workload import TableProfile, TrueJob

PROFILE = TableProfile({w: StepTime(1.0 / w + 0.25, 0.25) for w in (1, 2, 4)})
OPTIONS = SimulationOptions(restart_s=10.0, handover_s=0.0)


def engine_with(*names: str, steps: float = 100.0) -> SimulatedEngine:
    engine = SimulatedEngine(Cluster.uniform(2, 4), OPTIONS)
    for name in names:
        engine.add(TrueJob(JobSpec(name, 0.0, max_workers=4), PROFILE, steps))
    return engine


def order(name: str, attempt: int = 1, devices: tuple[int, ...] = (0, 1)) -> StartOrder:
    return StartOrder(name, attempt, devices, Launch((), ""))


def test_it_is_an_engine() -> None:
    engine: Engine = engine_with()
    assert [node.num_devices for node in engine.nodes()] == [4, 4]
    assert engine.fileno() == -1
    assert list(engine.poll()) == []
    engine.close()


def test_an_attempt_runs_to_its_end_when_the_clock_gets_there() -> None:
    engine = engine_with("a")
    engine.start(order("a"))
    assert engine.poll() == [WorkersStarted(0.0, "a", 1)]
    end_s = 10.0 + 100.0 * 0.75
    assert engine.next_s() == end_s
    engine.now_s = end_s - 1.0
    assert engine.poll() == []
    engine.now_s = 1000.0
    assert engine.poll() == [WorkersExited(end_s, "a", 1, Fate.COMPLETED)]
    assert engine.num_busy == 0


def test_a_job_whose_start_costs_more_than_others_begins_later() -> None:
    engine = engine_with("usual")
    engine.add(TrueJob(JobSpec("slow", 0.0, max_workers=4), PROFILE, 100.0, start_s=25.0))
    engine.start(order("usual"))
    engine.start(order("slow", devices=(4, 5)))
    engine.now_s = 1000.0
    ended_s = {event.job_id: event.at_s for event in engine.poll() if isinstance(event, WorkersExited)}
    assert ended_s == {"usual": 85.0, "slow": 100.0}


def test_a_restart_may_cost_more_than_the_first_start() -> None:
    engine = engine_with()
    engine.add(TrueJob(JobSpec("a", 0.0, max_workers=4), PROFILE, 100.0, start_s=5.0, restart_s=25.0))
    engine.start(order("a"))
    engine.now_s = 5.0
    engine.stop("a", 1)
    engine.start(order("a", attempt=2))
    assert engine.next_s() == 5.0 + 25.0 + 100.0 * 0.75


def test_an_attempt_asked_for_twice_is_started_once() -> None:
    engine = engine_with("a")
    for _ in range(2):
        engine.start(order("a"))
    assert engine.poll() == [WorkersStarted(0.0, "a", 1)]
    engine.now_s = 1000.0
    assert len(engine.poll()) == 1
    engine.start(order("a"))
    assert engine.poll() == []


@pytest.mark.parametrize("fate", [Fate.STOPPED, Fate.LOST])
def test_a_stopped_attempt_ends_once_and_the_next_resumes(fate: Fate) -> None:
    engine = engine_with("a")
    engine.start(order("a"))
    engine.poll()
    engine.now_s = 40.0
    end = engine.stop if fate is Fate.STOPPED else engine.kill
    for _ in range(2):
        end("a", 1)
    assert engine.poll() == [WorkersExited(40.0, "a", 1, fate)]
    assert engine.next_s() == float("inf")
    engine.start(order("a", 2, (0, 1, 2, 3)))
    left = 100.0 - 30.0 / 0.75
    assert engine.next_s() == pytest.approx(40.0 + 10.0 + left * 0.5)


def test_stopping_an_unstarted_or_finished_attempt_does_nothing() -> None:
    engine = engine_with("a")
    engine.stop("a", 1)
    engine.start(order("a", 2))
    engine.poll()
    engine.kill("a", 1)
    assert engine.poll() == []


def test_attempts_stay_known_until_they_are_forgotten() -> None:
    engine = engine_with("a", "b")
    engine.start(order("a"))
    engine.start(order("b", devices=(2, 3)))
    engine.now_s = 1000.0
    engine.poll()
    assert sorted(engine.known()) == [("a", 1), ("b", 1)]
    for _ in range(2):
        engine.forget("a", 1)
    assert list(engine.known()) == [("b", 1)]


def test_two_attempts_on_the_same_devices_share_them_and_the_second_to_leave_is_alone_again() -> None:
    engine = engine_with("a", "b")
    engine.start(order("a"))
    engine.start(order("b"))
    assert engine.num_busy == 2
    engine.poll()
    together = turns_speed(PROFILE.times[2], PROFILE.times[2]).first_steps_per_s
    assert together < 1 / 0.75
    engine.now_s = 10.0
    engine.poll()
    assert engine.runs["a"].steps_per_s == engine.runs["b"].steps_per_s == pytest.approx(together)
    engine.give_role("b", fills=True)
    engine.next_s()
    assert engine.runs["a"].steps_per_s == pytest.approx(1 / 0.75)
    assert engine.runs["b"].steps_per_s == pytest.approx(
        filler_speed(PROFILE.times[2], PROFILE.times[2]).second_steps_per_s
    )
    engine.stop("a", 1)
    engine.next_s()
    assert engine.runs["b"].steps_per_s == pytest.approx(1 / 0.75)
    assert engine.num_busy == 2
    engine.stop("b", 1)
    assert engine.num_busy == 0
