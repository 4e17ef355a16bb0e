"""The sharded state of an optimizer: reading, writing, and moving it.

The user's optimizer shows it as ordinary state (state_view.py): reading fetches the rest from the other workers
(state_service.py), writing stores this worker's part.  One worker can read alone; all workers must make the same
writes, as with DDP.
"""

from __future__ import annotations

import weakref
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch

from weft.overlap.initial_state import initial_state
from weft.overlap.left_gradients import LeftGradients
from weft.overlap.sharded import ShardedSchedule
from weft.overlap.state_runs import (
    StateRun,
    add_runs,
    export_runs,
    full_state,
    import_runs,
    overlapping,
    portions,
    runs_of_full_state,
)
from weft.overlap.state_service import StateChanges
from weft.overlap.state_view import ParameterState, StateMap

FullState = dict[str, Any]


class ShardedState:
    """The state of one sharded schedule.  Replaces ``optimizer.state`` until :meth:`give_back`."""

    def __init__(self, schedule: ShardedSchedule, changes: StateChanges) -> None:
        self._schedule = schedule
        self._number_of = {id(parameter): number for number, parameter in enumerate(schedule.parameters)}
        self.service = changes.service
        self._changes = changes
        if self.service is not None:
            self.service.answer_with(_exporter(schedule))
        self._map = StateMap(self)
        self._take_over(schedule.optimizer.state)

    # ---- for optimizer.state

    def number_of(self, parameter: Any) -> int | None:
        return self._number_of.get(id(parameter))

    def parameter(self, number: int) -> torch.nn.Parameter:
        return self._schedule.parameters[number]

    @property
    def parameters(self) -> Sequence[torch.nn.Parameter]:
        return self._schedule.parameters

    def own_runs(self) -> list[StateRun]:
        """This worker's part.  The tensors are the live ones, not copies."""
        self.adopt()
        return export_runs(self._schedule.updates)

    def read(self, number: int | None = None) -> dict[int, FullState]:
        """Copies of the full tensors of one parameter, or of all that have state."""
        schedule = self._schedule
        if self._changes.is_empty:  # on every worker: there is nothing to fetch
            numbers = range(len(schedule.parameters)) if number is None else [number]
            shown = numbers if self._changes.shows_initial else []
            return {n: initial_state(schedule.optimizer, schedule.parameters[n]) for n in shown}
        runs = [run for run in export_runs(schedule.updates) if number in (None, run.parameter)]
        if self.service:
            runs += self.service.fetch(number)
        return dict(sorted(full_state(schedule.parameters, runs).items()))

    def replace(self, states: Mapping[int, FullState]) -> None:
        """Set the state of these parameters; it may be empty.  The same on every worker."""
        by_parameter = {self.parameter(number): state for number, state in states.items()}
        runs = runs_of_full_state(self._schedule.parameters, by_parameter)
        with self._replacing(states):
            import_runs(self._schedule.updates, runs, set(states))
            self._schedule.state_changed()
        for number in states:
            self._changes.num_writes[number] += 1
        self._changes.is_empty = not runs and (self._changes.is_empty or len(states) == len(self._schedule.parameters))
        self._changes.shows_initial = False

    def replace_all(self, runs: Sequence[StateRun]) -> None:
        """Set the whole state; each worker passes at least the runs that it keeps."""
        with self._replacing(range(len(self._schedule.parameters))):
            import_runs(self._schedule.updates, runs)
            self._schedule.state_changed()
        self._changes.num_changes += 1
        self._changes.is_empty, self._changes.shows_initial = not runs, False

    def stamp(self, number: int) -> tuple[int, int]:
        """Changes when the parameter's state has changed."""
        return self._changes.stamp(number)

    def show_initial(self) -> None:
        """Until something changes, show an empty state as it would be after a first step (initial_state.py)."""
        self._changes.shows_initial = self._changes.is_empty

    # ---- for the optimizer's hooks

    def adopt(self) -> None:
        """Take over a state set by ``load_state_dict`` or ``optimizer.state = ...``."""
        if self._schedule.optimizer.state is not self._map:
            self._take_over(self._schedule.optimizer.state)

    def _take_over(self, state: Mapping[Any, Any]) -> None:
        self.replace_all(runs_of_full_state(self._schedule.parameters, state))
        self._map.rest = defaultdict(dict, {k: v for k, v in state.items() if self.number_of(k) is None})
        self._schedule.optimizer.state = self._map  # type: ignore[assignment]

    def _replacing(self, numbers: Any) -> Any:
        if self.service is None:
            return nullcontext()
        old: dict[int, list[StateRun]] = {number: [] for number in numbers}
        for run in self._schedule.state_aside():
            if run.parameter in old:
                old[run.parameter].append(run)
        return self.service.replacing(old)

    def before_step(self) -> None:
        self.adopt()

    def after_step(self) -> None: ...

    # ---- another plan

    def move_to(self, order: Sequence[int], cuts: Sequence[Sequence[int]]) -> None:
        """Switch to another plan, with parameters and state.  Collective; all workers have drained theirs."""
        schedule = self._schedule
        with self.service.moving() if self.service else nullcontext():
            runs, gradients = export_runs(schedule.updates), LeftGradients(schedule)
            schedule.take_up(order, cuts)
            self._move_runs(runs, partial(add_runs, schedule.updates))
            gradients.make_room()
            self._move_runs(gradients.runs, gradients.put)
            schedule.state_changed()

    def _move_runs(self, runs: list[StateRun], add: Callable[[list[StateRun]], None]) -> None:
        """Moves one portion at a time and frees its old place, so that the state is never in memory twice."""
        schedule = self._schedule
        held: dict[int, list[StateRun]] = {}
        while runs:
            run = runs.pop()
            held.setdefault(run.parameter, []).append(run)
        num_workers = schedule.transport.num_workers
        wanted = [[p for b in schedule.buckets for p in b.plan.owned_by(w)] for w in range(num_workers)]
        for portion in portions(schedule.parameters):
            moving = [run for number in portion for run in held.pop(number, ())]
            if self.service:
                moving = self.service.exchange([overlapping(moving, pieces) for pieces in wanted])
            add(moving)

    # ---- the end

    def give_back(self) -> None:
        """Make ``optimizer.state`` an ordinary one.  Collective."""
        self.adopt()
        schedule = self._schedule
        runs = export_runs(schedule.updates)
        if self.service:
            runs = self.service.exchange([runs] * schedule.transport.num_workers)
        state = self._map.rest
        for number, of_parameter in sorted(full_state(schedule.parameters, runs).items()):
            state[schedule.parameters[number]] = of_parameter
        schedule.optimizer.state = state


def complete(state_dict: dict[str, Any]) -> dict[str, Any]:
    """Make a state dict ordinary: nothing in it refers to us."""
    states = state_dict["state"]
    for key, state in states.items():
        if isinstance(state, ParameterState):
            states[key] = state.plain()
    return state_dict


def _exporter(schedule: ShardedSchedule) -> Callable[[], list[StateRun] | None]:
    """For the thread of the state service, which must not keep the model alive."""
    reference = weakref.ref(schedule)

    def export() -> list[StateRun] | None:
        alive = reference()
        return alive.state_aside() if alive else None

    return export
