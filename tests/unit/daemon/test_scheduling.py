"""Live decisions: the simulator's policies on what is known about real jobs."""

from __future__ import annotations

import pytest
from tests.unit.daemon.test_knowledge import measure

from weft.control.invariants import check
from weft.control.reducer import reduce
from weft.control.state import JobState, State
from weft.core.cluster import Cluster
from weft.core.events import Event, Fate, JobSubmitted, WorkersExited, WorkersStarted
from weft.core.job import JobSpec
from weft.daemon.knowledge import Knowledge
from weft.daemon.scheduling import Scheduler, SchedulingOptions
from weft.elastic.registry import POLICIES


class World:
    """State, knowledge, and scheduler on a clock that the test sets."""

    def __init__(self, num_devices: int, **options: object) -> None:
        cluster = Cluster.uniform(1, num_devices)
        self.state, self.now_s = State(cluster), 0.0
        self.knowledge = Knowledge(cluster, restart_prior_s=1.0)
        self.scheduler = Scheduler(SchedulingOptions(**options))  # type: ignore[arg-type]

    def happen(self, event: Event) -> None:
        self.state, _ = reduce(self.state, event)
        check(self.state)

    def submit(
        self, name: str, max_workers: int = 8, total_steps: int | None = 1000, title: str = "", **values: object
    ) -> None:
        spec = JobSpec(name, self.now_s, max_workers=max_workers, requested_workers=max_workers, **values)  # type: ignore[arg-type]
        self.happen(JobSubmitted(self.now_s, spec, total_steps, title))

    def has_run(self, title: str, step_s: float, **values: object) -> None:
        """A job of that name has run here before, on one device."""
        job_id = f"earlier {title}"
        self.submit(job_id, max_workers=1, title=title, **values)  # type: ignore[arg-type]
        self.decide()
        self.run(job_id, step_s)
        self.complete(job_id)

    def complete(self, name: str) -> None:
        self.happen(WorkersExited(self.now_s, name, self.state.jobs[name].attempt, Fate.COMPLETED))
        self.knowledge.finished(self.state.jobs[name])

    def decide(self) -> None:
        """One decision, carried out immediately."""
        decided = self.scheduler.decide(self.state, self.knowledge, self.now_s)
        if decided.event.reasons:
            self.happen(decided.event)
        for job in list(self.state.jobs.active.values()):
            if job.state is JobState.STOPPING:
                self.happen(WorkersExited(self.now_s, job.id, job.attempt, Fate.STOPPED, 75))
        for job in list(self.state.jobs.active.values()):
            if job.devices and job.workers_since_s is None:
                self.happen(WorkersStarted(self.now_s, job.id, job.attempt))

    def run(self, name: str, step_s_alone: float = 1.0) -> None:
        """The job reports at its current size, and scales perfectly."""
        job = self.state.jobs[name]
        measure(self.knowledge, job, step_s_alone / len(job.devices))

    def workers(self, name: str) -> int:
        return len(self.state.jobs[name].devices)


@pytest.mark.parametrize("policy", [name for name in POLICIES if name not in ("fifo", "srtf", "tiresias")])
def test_lone_job_grows_by_doubling_as_it_is_measured(policy: str) -> None:
    world = World(8, policy=policy, hold_s=5.0)
    world.submit("a", total_steps=100_000)
    seen = []
    for _ in range(4):
        world.decide()
        seen.append(world.workers("a"))
        world.run("a")
        world.now_s += 100.0
    assert seen == [1, 2, 4, 8]


@pytest.mark.parametrize("policy", ["fifo", "srtf", "tiresias"])
def test_fixed_size_policies_start_jobs_at_the_requested_size(policy: str) -> None:
    world = World(8, policy=policy)
    world.submit("a", max_workers=4)
    world.decide()
    assert world.workers("a") == 4


@pytest.mark.parametrize("policy", ["fifo", "srtf", "tiresias"])
def test_a_job_that_asks_for_more_than_its_quota_runs_within_it_if_it_can(policy: str) -> None:
    world = World(8, policy=policy, quotas={"ana": 2})
    world.submit("a", max_workers=4, user="ana")
    world.decide()
    assert world.workers("a") == 2


@pytest.mark.parametrize("policy", list(POLICIES))
def test_silent_job_is_never_stopped_for_another(policy: str) -> None:
    world = World(2, policy=policy, hold_s=0.0)
    world.submit("silent", max_workers=2, min_workers=2, total_steps=None)
    world.decide()
    world.submit("urgent", max_workers=1, total_steps=1, priority=5, weight=100.0)
    for _ in range(3):
        world.now_s += 1000.0
        world.decide()
    assert world.state.jobs["silent"].attempt == 1
    assert world.workers("silent") == 2
    assert world.workers("urgent") == 0


def test_a_job_just_resized_is_left_alone_for_a_while() -> None:
    world = World(8, hold_s=50.0)
    world.submit("a", total_steps=100_000)
    world.decide()
    world.run("a")
    world.now_s += 10.0
    world.decide()
    assert world.workers("a") == 1
    world.now_s += 45.0
    world.decide()
    assert world.workers("a") == 2


def test_a_new_job_gets_devices_from_a_job_that_can_shrink() -> None:
    world = World(2, hold_s=1.0)
    world.submit("long", total_steps=100_000)
    for _ in range(2):
        world.decide()
        world.run("long")
        world.now_s += 100.0
    assert world.workers("long") == 2
    world.submit("short", total_steps=50)
    world.decide()
    assert (world.workers("long"), world.workers("short")) == (1, 1)


def test_every_change_has_a_reason_and_waiting_is_explained_once() -> None:
    world = World(1)
    world.submit("a", max_workers=1)
    world.submit("b", max_workers=1)
    decided = world.scheduler.decide(world.state, world.knowledge, 0.0)
    assert set(decided.event.reasons) == {"a", "b"}
    assert len(decided.event.devices) == 1
    world.happen(decided.event)
    later = world.scheduler.decide(world.state, world.knowledge, 1.0)
    assert not later.changed
    world.happen(later.event)  # the first job has not reported yet, which the other waits for
    again = world.scheduler.decide(world.state, world.knowledge, 2.0)
    assert not again.changed
    assert not again.event.reasons


def test_a_decision_in_progress_is_not_reversed() -> None:
    world = World(2, hold_s=30.0)
    world.submit("a", total_steps=100_000)
    world.decide()
    world.run("a")
    world.now_s += 100.0
    world.happen(world.scheduler.decide(world.state, world.knowledge, world.now_s).event)
    assert world.state.jobs["a"].state is JobState.STOPPING
    world.submit("b", total_steps=10)
    world.happen(world.scheduler.decide(world.state, world.knowledge, world.now_s).event)
    assert len(world.state.jobs["a"].wanted) == 2


def test_failed_node_is_not_used() -> None:
    world = World(4)
    cluster = Cluster.uniform(2, 2).without({0})
    world.state, world.knowledge = State(cluster), Knowledge(cluster, 1.0)
    for name in "abc":
        world.submit(name, max_workers=1)
    world.decide()
    used = {device for job in world.state.jobs.values() for device in job.devices}
    assert used == {2, 3}


def test_a_job_with_unknown_remaining_work_is_not_starved() -> None:
    world = World(2, hold_s=0.0)
    for name in "abcd":
        world.submit(name, max_workers=1, total_steps=None)
    world.decide()
    assert sum(world.workers(name) for name in "abcd") == 2
