"""A failing policy costs no job its devices, and holds up only the job it fails on."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from dataclasses import replace

import pytest
from tests.hang_limit import HANG_S
from tests.unit.daemon.awaiting import until, until_over
from tests.unit.daemon.conftest import a_job
from tests.unit.daemon.scripted_engine import ScriptedEngine
from tests.unit.daemon.test_scheduling import World

from weft.control.state import State
from weft.core.cluster import Cluster
from weft.core.events import DevicesAssigned, Fate
from weft.core.job import JobSpec
from weft.core.reason import in_words
from weft.core.snapshot import Allocation, JobView, Snapshot
from weft.core.speed import SpeedCurve, StepTime
from weft.daemon.guarded_policy import MAX_TRIALS, RETRY_S, GuardedPolicy, without
from weft.daemon.knowledge import Knowledge
from weft.daemon.service import Controller
from weft.elastic import Rules
from weft.elastic.balanced import Balanced

BAD_WEIGHT = 666.0
Answer = Callable[[Snapshot, Allocation], object]


class Failing(Balanced):
    """Answers like the default policy, except when a job of a certain weight is present."""

    def __init__(self, answer: Answer, *, always: bool = False) -> None:
        super().__init__(Rules(hold_s=1e-3))
        self._answer, self._always = answer, always
        self.num_calls = 0

    def decide(self, snapshot: Snapshot) -> Allocation:
        self.num_calls += 1
        allocation = super().decide(snapshot)
        if self._always or any(job.spec.weight == BAD_WEIGHT for job in snapshot.jobs):
            return self._answer(snapshot, allocation)  # type: ignore[return-value]
        return allocation


def raises(snapshot: Snapshot, allocation: Allocation) -> object:
    raise OverflowError("math range error")


ANSWERS: dict[str, Answer] = {
    "raises": raises,
    "too many devices": lambda snapshot, _: Allocation({job.id: 99 for job in snapshot.jobs}),
    "unknown job": lambda _, found: replace(found, workers={**found.workers, "nobody": 1}),
    "not a number of workers": lambda _, found: replace(found, workers=dict.fromkeys(found.workers, math.nan)),
    "negative": lambda _, found: replace(found, workers=dict.fromkeys(found.workers, -1)),
    "never valid": lambda _, found: replace(found, valid_until_s=math.nan),
    "pair of strangers": lambda _, found: replace(found, pairs=(("nobody", "noone"),)),
    "nothing": lambda _, __: None,
}


def world_with(policy: Failing, num_devices: int = 8) -> World:
    world = World(num_devices)
    world.scheduler.policy = policy
    world.scheduler.guarded = GuardedPolicy(policy)
    return world


@pytest.mark.parametrize("answer", ANSWERS.values(), ids=list(ANSWERS))
def test_one_job_the_policy_fails_on_leaves_the_others_running_and_says_why_it_waits(answer: Answer) -> None:
    world = world_with(Failing(answer))
    world.submit("a", max_workers=8)
    world.submit("bad", max_workers=8, weight=BAD_WEIGHT)
    world.submit("b", max_workers=8)
    world.decide()
    assert (world.workers("a"), world.workers("bad"), world.workers("b")) == (1, 0, 1)
    assert "policy balanced fails on this job" in world.state.jobs["bad"].reason
    assert "fails" not in world.state.jobs["a"].reason


@pytest.mark.parametrize("answer", ANSWERS.values(), ids=list(ANSWERS))
def test_a_policy_that_always_fails_still_lets_jobs_start_in_order(answer: Answer) -> None:
    world = world_with(Failing(answer, always=True), num_devices=2)
    for name in "abc":
        world.submit(name, max_workers=8)
    world.decide()
    assert [world.workers(name) for name in "abc"] == [1, 1, 0]
    assert "decided without policy balanced, which failed" in world.state.jobs["c"].reason


def test_a_running_job_the_policy_starts_to_fail_on_keeps_its_devices() -> None:
    policy = Failing(raises)
    world = world_with(policy)
    world.submit("bad", max_workers=1, weight=BAD_WEIGHT)
    world.decide()
    world.run("bad")
    devices = world.state.jobs["bad"].devices
    for name in "abc":
        world.submit(name, max_workers=8)
    world.now_s += 100.0
    world.decide()
    assert world.state.jobs["bad"].devices == devices
    assert "keeps the devices it has" in world.state.jobs["bad"].reason
    assert all(world.workers(name) == 1 for name in "abc")


def test_without_a_policy_no_running_job_is_moved_to_make_room_for_another() -> None:
    policy = Failing(raises)
    world = world_with(policy)
    cluster = Cluster.uniform(2, 4)
    world.state, world.knowledge = State(cluster), Knowledge(cluster, restart_prior_s=1.0)
    for name in "ab":
        world.submit(name, max_workers=1)
    world.happen(DevicesAssigned(0.0, {"a": (0,), "b": (4,)}))
    for name in "ab":
        world.run(name)
    world.submit("large", min_workers=4, max_workers=4)
    world.now_s += 100.0
    policy._always = True
    world.decide()
    assert [world.state.jobs[name].devices for name in "ab"] == [(0,), (4,)]
    assert world.workers("large") == 4


def test_a_pair_set_aside_holds_its_devices_once_and_its_share_of_the_quota() -> None:
    curve = SpeedCurve({1: StepTime(1.0), 2: StepTime(0.6)})
    pair = [
        JobView(JobSpec(name, 0.0, max_workers=2, user="ada"), curve, 10.0, workers=2, partner=other)
        for name, other in ("ab", "ba")
    ]
    other = JobView(JobSpec("c", 0.0, max_workers=2, user="bo"), curve, 10.0)
    snapshot = Snapshot(0.0, Cluster.uniform(1, 4), (*pair, other), quotas={"ada": 3, "bo": 2})
    rest = without(snapshot, {"a", "b"})
    assert (rest.num_devices, rest.jobs) == (2, (other,))
    assert rest.quotas == {"ada": 0, "bo": 2}


def test_finding_the_job_is_not_repeated_with_every_decision_and_ends_when_the_policy_works_again() -> None:
    policy = Failing(raises)
    world = world_with(policy)
    for number in range(100):
        world.submit(f"j{number:02}", max_workers=1, weight=BAD_WEIGHT if number == 42 else 1.0)
    world.decide()
    assert policy.num_calls <= MAX_TRIALS
    before = policy.num_calls
    world.decide()
    assert policy.num_calls == before + 1
    policy._answer = lambda _, found: found
    world.now_s += RETRY_S + 1
    world.decide()
    assert world.scheduler.guarded.aside == {}
    assert "fails" not in world.state.jobs["j42"].reason


def test_jobs_are_scheduled_without_a_policy_that_never_answers_until_it_does() -> None:
    go_on, entered = threading.Event(), threading.Event()

    def hangs(snapshot: Snapshot, allocation: Allocation) -> object:
        entered.set()
        go_on.wait()
        return allocation

    policy = Failing(hangs, always=True)
    world = world_with(policy, num_devices=2)
    world.scheduler.guarded = GuardedPolicy(policy, limit_s=0.05)
    for name in "abc":
        world.submit(name, max_workers=2)
    world.decide()
    assert entered.wait(HANG_S)
    assert [world.workers(name) for name in "abc"] == [1, 1, 0]
    assert "took longer than" in world.state.jobs["c"].reason
    calls = policy.num_calls
    world.decide()
    assert policy.num_calls == calls  # not asked while it is still busy
    policy._always = False
    go_on.set()
    thread = world.scheduler.guarded._thread
    assert thread._overdue is not None
    thread._overdue.result(HANG_S)
    thread._limit_s = HANG_S  # what it has to answer now may take its time
    world.decide()
    assert world.scheduler.guarded.trouble == ""


def test_outlook_of_a_job_the_policy_fails_on_is_an_answer() -> None:
    world = world_with(Failing(raises))
    world.submit("a")
    world.decide()
    world.run("a")
    spec = replace(world.state.jobs["a"].spec, id="new", weight=BAD_WEIGHT)
    workers, reason = world.scheduler.outlook(world.state, world.knowledge, spec, None, world.now_s)
    assert workers == 0
    assert "policy balanced fails on this job" in in_words(reason)
    assert world.scheduler.guarded.aside == {}


def test_controller_reports_the_job_in_status_explain_and_metrics_and_runs_the_others(
    open_controller: Callable[..., Controller], engine: ScriptedEngine
) -> None:
    controller = open_controller()
    policy = Failing(raises)
    controller._scheduler.policy = policy
    controller._scheduler.guarded.policy = policy
    bad = controller.submit(a_job(weight=BAD_WEIGHT))
    good = controller.submit(a_job())
    until(lambda: (good, 1) in engine.running(), "the other job's workers")
    engine.end(good, 1, Fate.COMPLETED)
    until_over(controller, [good])
    assert "OverflowError: math range error" in controller.job(bad).reason
    assert "OverflowError: math range error" in controller.explain(bad)[-1].text
    metrics = controller.metrics().decode()
    assert "weft_jobs_set_aside 1.0" in metrics
    assert "weft_decision_errors_total 1.0" in metrics


@pytest.mark.parametrize("priority", [-1_000_000, -1000, 307, 308, 400, 1_000_000])
@pytest.mark.parametrize("policy", ["balanced", "exact", "afs"])
def test_a_job_of_any_priority_starts_beside_others_also_after_a_restart(
    open_controller: Callable[..., Controller], engine: ScriptedEngine, policy: str, priority: int
) -> None:
    controller = open_controller(policy)
    first = [controller.submit(a_job(priority=priority)), controller.submit(a_job())]
    until(lambda: all((one, 1) in engine.running() for one in first), "both jobs")
    assert controller.outlook(a_job(priority=priority))["reason"]
    controller = open_controller(policy)
    for one in first:
        engine.end(one, 1, Fate.COMPLETED)
    later = [controller.submit(a_job(priority=priority)), controller.submit(a_job())]
    until(lambda: all((one, 1) in engine.running() for one in later), "both jobs after the restart")
    for one in later:
        engine.end(one, 1, Fate.COMPLETED)
    until_over(controller, later)
