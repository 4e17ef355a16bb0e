"""An engine without processes.  The machine remembers, the engine may come and go."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from weft.core.engine import LOCAL_NODE, EngineEvent, EngineNode, StartOrder
from weft.core.events import Fate, WorkersExited, WorkersStarted

Attempt = tuple[str, int]

ENDS_AT_ONCE = {"finish": (Fate.COMPLETED, 0, "done"), "fail": (Fate.FAILED, 7, "about to fail")}
ON_STOP = {"save": (75, "saved")}


@dataclass
class FakeMachine:
    """What outlives an engine: attempts, their events, what was said."""

    num_devices: int
    starts: list[Attempt] = field(default_factory=list)
    events: dict[Attempt, list[EngineEvent]] = field(default_factory=dict)
    ever_started: set[Attempt] = field(default_factory=set)
    orders: dict[Attempt, StartOrder] = field(default_factory=dict)
    output: dict[tuple[str, int, int], str] = field(default_factory=dict)
    now_s: float = 0.0

    def __post_init__(self) -> None:
        self.nodes = (EngineNode(LOCAL_NODE, self.num_devices),)

    def tick(self) -> float:
        self.now_s += 1.0
        return self.now_s

    def is_over(self, attempt: Attempt) -> bool:
        return any(isinstance(event, WorkersExited) for event in self.events[attempt])

    def end(self, attempt: Attempt, fate: Fate, exit_code: int, reason: str) -> None:
        job_id, number = attempt
        self.events[attempt].append(WorkersExited(self.tick(), job_id, number, fate, exit_code, reason))

    def say(self, attempt: Attempt, words: str) -> None:
        for rank in range(len(self.orders[attempt].devices)):
            self.output[*attempt, rank] = self.output.get((*attempt, rank), "") + f"{words}\n"


class FakeEngine:
    """The protocol over a ``FakeMachine``."""

    def __init__(self, machine: FakeMachine) -> None:
        self._machine = machine
        self._num_told: dict[Attempt, int] = {}

    def nodes(self) -> tuple[EngineNode, ...]:
        return self._machine.nodes

    def start(self, order: StartOrder) -> None:
        attempt, machine = (order.job_id, order.attempt), self._machine
        if attempt in machine.ever_started:
            return
        machine.ever_started.add(attempt)
        machine.starts.append(attempt)
        machine.orders[attempt] = order
        machine.events[attempt] = [WorkersStarted(machine.tick(), *attempt)]
        kind = order.launch.argv[0]
        if kind in ENDS_AT_ONCE:
            fate, code, words = ENDS_AT_ONCE[kind]
            machine.say(attempt, words)
            machine.end(attempt, fate, code, "" if fate is Fate.COMPLETED else f"worker 0 exited with code {code}")
        else:
            machine.say(attempt, {"wait": "waiting", "save": "training"}.get(kind, kind))

    def stop(self, job_id: str, attempt: int) -> None:
        known = job_id, attempt
        if known in self._machine.events and not self._machine.is_over(known):
            code, words = ON_STOP.get(self._machine.orders[known].launch.argv[0], (143, ""))
            self._machine.say(known, words)
            self._machine.end(known, Fate.STOPPED, code, "stopped")

    def kill(self, job_id: str, attempt: int) -> None:
        known = job_id, attempt
        if known in self._machine.events and not self._machine.is_over(known):
            self._machine.end(known, Fate.STOPPED, 137, "killed")

    def poll(self) -> Sequence[EngineEvent]:
        new: list[EngineEvent] = []
        for attempt, events in self._machine.events.items():
            new += events[self._num_told.get(attempt, 0) :]
            self._num_told[attempt] = len(events)
        return sorted(new, key=lambda event: event.at_s)

    def fileno(self) -> int:
        return -1

    def hints(self) -> Mapping[tuple[str, int], str]:
        return {}

    def warnings(self) -> Sequence[str]:
        return ()

    def known(self) -> Sequence[tuple[str, int]]:
        return list(self._machine.events)

    def forget(self, job_id: str, attempt: int) -> None:
        if (job_id, attempt) in self._machine.events and self._machine.is_over((job_id, attempt)):
            del self._machine.events[job_id, attempt]

    def close(self) -> None:
        self._num_told.clear()
