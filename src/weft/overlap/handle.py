"""What the user holds: ``handle = weft.overlap(model, optimizer)``."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.hooks import RemovableHandle

from weft.core.chrome_trace import write_chrome_trace
from weft.core.turns import TURNS
from weft.errors import OverlapError
from weft.overlap import checks
from weft.overlap.buffers import BufferSync
from weft.overlap.flat import FlatMemory
from weft.overlap.report import Report, make_report
from weft.overlap.rounds import Rounds
from weft.overlap.sharded import ShardedSchedule
from weft.overlap.state import (
    StateRun,
    add_runs,
    export_runs,
    full_state,
    import_runs,
    overlapping,
    portions,
    runs_of_full_state,
)
from weft.overlap.state_service import StateService
from weft.overlap.tuning import Tuner

# By the identity of the model.  The model's hooks keep the handle alive, so an entry lives as long as its model.
_HANDLES: weakref.WeakValueDictionary[int, Overlap] = weakref.WeakValueDictionary()


def handle_of(model: nn.Module) -> Overlap | None:
    """The handle of an overlapped model, for code that was only given the model."""
    return _HANDLES.get(id(model))


class Overlap:
    """Controls an overlapped model and tells how it does.  Made by :func:`weft.overlap`."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        schedule: Rounds,
        buffers: BufferSync,
        tuner: Tuner,
        group: dist.ProcessGroup,
    ) -> None:
        self.model = model
        self.optimizer = optimizer
        self.schedule = schedule
        self.hooks: list[RemovableHandle] = []
        self._buffers = buffers
        schedule.send_buffers = buffers.launch
        self._tuner = tuner
        self._service: StateService | None = None
        managed = {id(parameter) for parameter in schedule.parameters}
        self._others = [p for g in optimizer.param_groups for p in g["params"] if id(p) not in managed]
        self._num_groups = len(optimizer.param_groups)
        if isinstance(schedule, ShardedSchedule):
            if schedule.transport.num_workers > 1:
                ranks = dist.get_process_group_ranks(group)
                self._service = StateService(StateService.group(ranks), _exporter(schedule))
                schedule.changing = partial(self._service.changing, step_done=True)
            self._take_over_state(schedule)
        tuner.relayout = self._move_to
        _HANDLES[id(model)] = self

    # ---- for the training loop

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backward passes inside only accumulate; the first one outside averages the sum.

        >>> with handle.no_sync():                  # doctest: +SKIP
        ...     loss_fn(model(x1), y1).backward()
        >>> loss_fn(model(x2), y2).backward()       # doctest: +SKIP
        """
        before, self.schedule.sync = self.schedule.sync, False
        try:
            yield
        finally:
            self.schedule.sync = before

    def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0) -> torch.Tensor:
        """Like ``torch.nn.utils.clip_grad_norm_`` over all parameters, with one scalar all-reduce."""
        schedule = self.schedule
        if not isinstance(schedule, ShardedSchedule):
            return nn.utils.clip_grad_norm_(schedule.parameters, max_norm, norm_type)
        total = schedule.arithmetic.total_norm(float(norm_type)).to(schedule.parameters[0].dtype)
        schedule.arithmetic.scale_gradients(None, torch.clamp(max_norm / (total + 1e-6), max=1.0))
        return total

    def full_gradient(self, parameter: nn.Parameter) -> torch.Tensor:
        """The averaged gradient of one parameter, whole.  Collective: call it on every worker."""
        number = next((n for n, p in enumerate(self.schedule.parameters) if p is parameter), None)
        if number is None:
            raise OverlapError("this parameter is not one of the overlapped model's trainable ones")
        if isinstance(self.schedule, ShardedSchedule):
            return self.schedule.arithmetic.full_gradient(number)
        if parameter.grad is None:
            raise OverlapError("there is no gradient: call backward() first")
        return parameter.grad.clone()

    def flush(self) -> None:
        """Wait until every parameter holds its newest value.

        Only needed before memory is read behind torch's back, for example through an old numpy view.
        """
        self.schedule.flush()

    def detach(self) -> None:
        """Give model and optimizer back as ordinary ones.  Collective: call it on every worker."""
        schedule = self.schedule
        schedule.drain()
        if isinstance(schedule, ShardedSchedule):
            self._give_back_state(schedule)
            schedule.give_back_gradients()
        schedule.memory.release()
        for hook in self.hooks:
            hook.remove()
        self.hooks.clear()
        if self._service:
            self._service.leave()
            self._service = None
        checks.give_back(schedule.parameters)
        del _HANDLES[id(self.model)]

    # ---- for the curious

    def report(self) -> Report:
        """Where the time of the last steps went, and how far it is from the bound."""
        return make_report(self.schedule, self._tuner)

    @contextmanager
    def trace(self, path: str | Path) -> Iterator[None]:
        """Record the steps inside as a Chrome trace (``weft trace`` and Perfetto read it)."""
        clock = self.schedule.clock
        for step in (*clock.steps, clock.current):
            step.spans.clear()  # of an earlier trace
        clock.tracing = True
        try:
            yield
        finally:
            clock.tracing = False
            write_chrome_trace(path, clock.spans())

    # ---- called by hooks

    def forward_begins(self) -> None:
        if torch.is_grad_enabled():
            self.schedule.forward_begins()
            self.schedule.clock.forward_began()
        self._buffers.finish()
        self.schedule.before_compute()
        TURNS.compute()
        TURNS.num_inside += 1

    def forward_ended(self) -> None:
        TURNS.num_inside = max(0, TURNS.num_inside - 1)
        if torch.is_grad_enabled():
            self.schedule.clock.forward_ended()

    def before_step(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        stray = len(self.optimizer.param_groups) != self._num_groups
        if stray or any(parameter.grad is not None for parameter in self._others):
            raise OverlapError(
                "the optimizer was given parameters, or a frozen one was thawed, after weft.overlap was called; their "
                "gradients would stay local: call detach() and weft.overlap again"
            )
        return self.schedule.before_step(args, kwargs)

    def after_step(self) -> None:
        self.schedule.after_step()
        self._tuner.after_step()

    def complete_state_dict(self, state_dict: dict[str, Any]) -> dict[str, Any]:
        """Put the sharded state, from all workers, into an ordinary state dict."""
        schedule = self.schedule
        if not isinstance(schedule, ShardedSchedule):
            return state_dict
        runs = export_runs(schedule.updates) + (self._service.fetch() if self._service else [])
        index = {id(p): k for k, p in enumerate(p for g in self.optimizer.param_groups for p in g["params"])}
        for number, state in full_state(schedule.parameters, runs).items():
            state_dict["state"][index[id(schedule.parameters[number])]] = state
        return state_dict

    def state_was_loaded(self) -> None:
        if isinstance(self.schedule, ShardedSchedule):
            # Counted like a step: who asks for the loaded state waits until everybody has loaded it.
            with self._changing(step_done=True):
                self._take_over_state(self.schedule)

    # ---- state that moves

    def _take_over_state(self, schedule: ShardedSchedule) -> None:
        state = self.optimizer.state
        import_runs(schedule.updates, runs_of_full_state(schedule.parameters, state))
        for parameter in schedule.parameters:
            state.pop(parameter, None)

    def _give_back_state(self, schedule: ShardedSchedule) -> None:
        everything = export_runs(schedule.updates)
        if self._service:
            everything = self._service.exchange([everything] * schedule.transport.num_workers)
        for number, state in full_state(schedule.parameters, everything).items():
            self.optimizer.state[schedule.parameters[number]] = state

    def _move_to(self, order: Sequence[int], cuts: Sequence[Sequence[int]]) -> None:
        """Take up another plan; parameters and optimizer state move along.  Collective."""
        schedule = self.schedule
        schedule.drain()
        with self._changing():
            runs = export_runs(schedule.updates) if isinstance(schedule, ShardedSchedule) else []
            schedule.forget_plan()  # the new buffers may take the place of the old ones
            if tuple(order) != schedule.memory.order:
                schedule.memory = FlatMemory(schedule.parameters, order, schedule.transport.num_workers)
            schedule.lay_out(schedule.memory, cuts)
            if isinstance(schedule, ShardedSchedule):
                self._move_state(schedule, runs)

    def _move_state(self, schedule: ShardedSchedule, runs: list[StateRun]) -> None:
        """A portion at a time, each forgotten where it was before the next one moves: state is never there twice."""
        held: dict[int, list[StateRun]] = {}
        while runs:
            run = runs.pop()
            held.setdefault(run.parameter, []).append(run)
        num_workers = schedule.transport.num_workers
        wanted = [[p for b in schedule.buckets for p in b.plan.owned_by(w)] for w in range(num_workers)]
        for portion in portions(schedule.parameters):
            moving = [run for number in portion for run in held.pop(number, ())]
            if self._service:
                moving = self._service.exchange([overlapping(moving, pieces) for pieces in wanted])
            add_runs(schedule.updates, moving)

    def _changing(self, step_done: bool = False) -> Any:
        return self._service.changing(step_done) if self._service else nullcontext()


def _exporter(schedule: ShardedSchedule) -> Callable[[], list[StateRun]]:
    """For the thread of the state service, which must not keep a model alive that nobody trains any more."""
    reference = weakref.ref(schedule)

    def export() -> list[StateRun]:
        alive = reference()
        return export_runs(alive.updates) if alive else []

    return export
