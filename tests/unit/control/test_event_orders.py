"""Any events in any order: no device assigned twice, nothing started twice, nothing left hanging."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.unit.control.step_invariants import check_step

from weft.control.codec import event_from_json, event_to_json, state_from_json, state_to_json
from weft.control.invariants import check
from weft.control.pending_actions import actions_outstanding
from weft.control.reducer import reduce
from weft.control.state import JobState, State
from weft.core.actions import Action, KillWorkers, StartWorkers, StopWorkers
from weft.core.cluster import Cluster
from weft.core.events import (
    CancelRequested,
    DevicesAssigned,
    Event,
    Fate,
    JobChanged,
    JobSubmitted,
    NodeDrained,
    NodeFailed,
    NodeRepaired,
    NodeResumed,
    ProgressReported,
    WorkersExited,
    WorkersStarted,
)
from weft.core.job import JobSpec, Launch
from weft.core.step_report import Progress

NAMES = tuple("abcdef")
names = st.sampled_from(NAMES)
attempts = st.integers(0, 6)
fates = st.sampled_from(Fate)
nodes = st.integers(-1, 3)
steps = st.integers(0, 40)


class Events(RuleBasedStateMachine):
    """A controller whose engine, owner, and clock behave arbitrarily."""

    def __init__(self) -> None:
        super().__init__()
        self.first = self.state = State(Cluster((3, 2, 1)))
        self.log: list[Event] = []
        self.alive: dict[tuple[str, int], tuple[int, ...]] = {}
        """Attempts whose workers exist, kept apart from what the reducer believes."""
        self.ever_started: set[tuple[str, int]] = set()
        self.back_s = 0.0

    @initialize()
    def first_jobs(self) -> None:
        for name in "abc":
            self.submit(name, 1, 4, 1)

    @property
    def at_s(self) -> float:
        return max(0.0, self.state.now_s + 1.0 - self.back_s)

    def feed(self, event: Event) -> None:
        before = self.state
        if isinstance(event, WorkersExited):
            self.alive.pop((event.job_id, event.attempt), None)
        self.state, actions = reduce(before, event)
        self.log.append(event)
        check_step(before, self.state)
        for action in actions:
            self.carry_out(action)

    def carry_out(self, action: Action) -> None:
        if isinstance(action, StartWorkers):
            key = (action.job_id, action.attempt)
            assert key not in self.ever_started, "started twice"
            assert not any(job_id == action.job_id for job_id, _ in self.alive), "two attempts of one job"
            there = [(other, devices) for other, devices in self.alive.items() if {*devices} & {*action.devices}]
            for (other, _), devices in there:
                assert devices == action.devices
                assert self.state.jobs[action.job_id].partner == other
            assert len(there) <= 1
            self.ever_started.add(key)
            self.alive[key] = action.devices
        elif isinstance(action, StopWorkers | KillWorkers):
            assert (action.job_id, action.attempt) in self.alive, "stopped although it was not there"

    @rule(name=names, least=st.integers(1, 2), more=st.integers(0, 4), max_restarts=st.integers(0, 2))
    def submit(self, name: str, least: int, more: int, max_restarts: int) -> None:
        spec = JobSpec(name, self.at_s, min_workers=least, max_workers=least + more)
        self.feed(JobSubmitted(self.at_s, spec, launch=Launch(("train",), "/", max_restarts=max_restarts)))

    @rule(name=names, least=st.none() | st.integers(1, 4), most=st.none() | st.integers(1, 4))
    def change(self, name: str, least: int | None, most: int | None) -> None:
        self.feed(JobChanged(self.at_s, name, weight=2.0, min_workers=least, max_workers=most))

    @rule(name=names)
    def cancel(self, name: str) -> None:
        self.feed(CancelRequested(self.at_s, name))

    @rule(data=st.data())
    def decide(self, data: st.DataObject) -> None:
        """A decision that fits: devices dealt out in some order, some of them to pairs."""
        cluster = self.state.cluster
        usable = [d for d in range(6) if cluster.node_of(d) not in cluster.closed_nodes]
        free = data.draw(st.permutations(usable))
        waiting = data.draw(st.permutations([job for job in self.state.jobs.active.values() if not job.is_cancelled]))
        devices: dict[str, tuple[int, ...]] = {}
        partners: dict[str, str] = {}
        fillers: set[str] = set()
        last = None
        for job in waiting:
            if last and last not in partners and data.draw(st.booleans(), label="pair"):
                if job.spec.min_workers <= len(devices[last]) <= job.spec.max_workers:
                    devices[job.id] = devices[last]
                    partners |= {last: job.id, job.id: last}
                    fillers |= {job.id} if data.draw(st.booleans(), label="fills") else set()
                continue
            most = min(len(free), job.spec.max_workers)
            if most < job.spec.min_workers:
                continue
            keep = job.wanted and set(job.wanted) <= set(free) and data.draw(st.booleans(), label="keep")
            num = data.draw(st.integers(job.spec.min_workers, most), label="workers")
            taken = job.wanted if keep else tuple(sorted(free[:num]))
            free = [d for d in free if d not in taken]
            devices[job.id], last = taken, job.id
        self.feed(DevicesAssigned(self.at_s, devices, partners, frozenset(fillers)))
        for job_id, wanted in devices.items():
            assert self.state.jobs[job_id].wanted == wanted

    @rule(
        devices=st.dictionaries(names, st.lists(st.integers(-1, 6), max_size=3).map(tuple), max_size=4),
        partners=st.dictionaries(names, names, max_size=2),
    )
    def decide_nonsense(self, devices: Mapping[str, tuple[int, ...]], partners: Mapping[str, str]) -> None:
        self.feed(DevicesAssigned(self.at_s, devices, partners, frozenset(partners)))

    @precondition(lambda self: self.alive)
    @rule(data=st.data(), fate=fates)
    def workers_exit(self, data: st.DataObject, fate: Fate) -> None:
        job_id, attempt = data.draw(st.sampled_from(sorted(self.alive)))
        self.feed(WorkersExited(self.at_s, job_id, attempt, fate, exit_code=3))

    @precondition(lambda self: self.alive)
    @rule(data=st.data(), step=steps)
    def workers_report(self, data: st.DataObject, step: int) -> None:
        job_id, attempt = data.draw(st.sampled_from(sorted(self.alive)))
        self.feed(WorkersStarted(self.at_s, job_id, attempt))
        self.feed(ProgressReported(self.at_s, job_id, attempt, Progress(step, step_s=0.5)))
        assert self.state.jobs[job_id].progress.step == step

    @rule(name=names, attempt=attempts, fate=fates, step=steps)
    def late_news(self, name: str, attempt: int, fate: Fate, step: int) -> None:
        if (name, attempt) in self.alive:
            return
        jobs = self.state.jobs
        self.feed(WorkersStarted(self.at_s, name, attempt))
        self.feed(ProgressReported(self.at_s, name, attempt, Progress(step)))
        self.feed(WorkersExited(self.at_s, name, attempt, fate))
        assert self.state.jobs is jobs

    @rule(node=nodes)
    def node_fails(self, node: int) -> None:
        self.feed(NodeFailed(self.at_s, node))

    @rule(node=nodes)
    def node_comes_back(self, node: int) -> None:
        self.feed(NodeRepaired(self.at_s, node))

    @rule(node=nodes, is_notice=st.booleans())
    def node_is_drained(self, node: int, is_notice: bool) -> None:
        self.feed(NodeDrained(self.at_s, node, is_notice=is_notice))

    @rule(node=nodes, is_notice=st.booleans())
    def node_is_resumed(self, node: int, is_notice: bool) -> None:
        self.feed(NodeResumed(self.at_s, node, is_notice=is_notice))

    @rule(back_s=st.sampled_from([0.0, 3600.0]))
    def set_clock(self, back_s: float) -> None:
        self.back_s = back_s

    @rule()
    def controller_is_killed_and_comes_back(self) -> None:
        self.state = state_from_json(state_to_json(self.state))
        for action in actions_outstanding(self.state):
            if isinstance(action, StartWorkers):
                assert self.alive[action.job_id, action.attempt] == action.devices
            elif isinstance(action, StopWorkers | KillWorkers):
                assert (action.job_id, action.attempt) in self.alive

    @invariant()
    def all_is_as_it_must_be(self) -> None:
        check(self.state)

    @invariant()
    def workers_are_where_the_controller_thinks(self) -> None:
        believed = {(job.id, job.attempt): job.devices for job in self.state.jobs.active.values() if job.devices}
        assert believed == self.alive

    def teardown(self) -> None:
        replayed = self.first
        for event in self.log:
            again = event_from_json(event_to_json(event))
            assert again == event
            replayed, _ = reduce(replayed, again)
        assert replayed == self.state
        for job in list(self.state.jobs.active.values()):
            self.feed(CancelRequested(self.at_s, job.id))
        for job_id, attempt in list(self.alive):
            self.feed(WorkersExited(self.at_s, job_id, attempt, Fate.STOPPED))
        assert all(job.state.is_final for job in self.state.jobs.values())
        assert not self.alive


Events.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestAnyOrder: Any = Events.TestCase


def test_the_command_line_lists_every_job_state() -> None:
    assert [state.value for state in JobState] == ["PENDING", "RUNNING", "STOPPING", "COMPLETED", "FAILED", "CANCELLED"]
