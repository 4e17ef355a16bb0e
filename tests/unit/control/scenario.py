"""A controller's state without the controller: feed it events and see what it would do."""

from __future__ import annotations

from tests.unit.control.step_invariants import check_step

from weft.control.invariants import check
from weft.control.reducer import reduce
from weft.control.state import Job, JobState, State
from weft.core.actions import Action, Decide
from weft.core.cluster import Cluster
from weft.core.events import DevicesAssigned, Event, Fate, JobSubmitted, WorkersExited
from weft.core.job import JobSpec, Launch


class Scenario:
    """Two nodes of four devices; every step is checked against the invariants."""

    def __init__(self, *names: str, max_restarts: int = 0) -> None:
        self.state = State(Cluster.uniform(num_nodes=2, devices_per_node=4))
        self.log: list[Event] = []
        for name in names:
            self.submit(name, max_restarts=max_restarts)

    def feed(self, event: Event) -> tuple[Action, ...]:
        """The actions that follow from the event."""
        before = self.state
        self.state, actions = reduce(before, event)
        self.log.append(event)
        check(self.state)
        check_step(before, self.state)
        return actions

    def submit(self, name: str, *, max_restarts: int = 0) -> tuple[Action, ...]:
        spec = JobSpec(name, self.now_s, max_workers=8)
        launch = Launch(("python", "train.py"), "/home/ada", max_restarts=max_restarts)
        return self.feed(JobSubmitted(self.now_s, spec, launch=launch))

    def assign(self, **devices: tuple[int, ...]) -> tuple[Action, ...]:
        return self.feed(DevicesAssigned(self.now_s, devices))

    def pair(self, first: str, second: str, devices: tuple[int, ...], *, filler: str = "") -> tuple[Action, ...]:
        partners = {first: second, second: first}
        fillers = frozenset({filler} if filler else ())
        return self.feed(DevicesAssigned(self.now_s, {first: devices, second: devices}, partners, fillers))

    def exit(self, name: str, fate: Fate, *, reason: str = "", exit_code: int = 0) -> tuple[Action, ...]:
        """The current attempt has exited."""
        return self.feed(WorkersExited(self.now_s, name, self.job(name).attempt, fate, exit_code, reason))

    def job(self, name: str) -> Job:
        return self.state.jobs[name]

    def where(self, name: str) -> JobState:
        return self.job(name).state

    @property
    def now_s(self) -> float:
        return self.state.now_s + 1.0


def asks_for_decision(actions: tuple[Action, ...]) -> bool:
    return any(isinstance(action, Decide) for action in actions)
