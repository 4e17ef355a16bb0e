"""Forward and backward passes of an overlapped model, over all of its parts: what the model's own hooks call."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

import torch
from torch import nn

from weft.overlap.buffers import BufferSync
from weft.overlap.compiled import outside_compiled
from weft.overlap.model_watch import ModelWatch
from weft.overlap.schedule_interface import Schedule
from weft.process.turns import TURNS


class Removable(Protocol):
    """A hook, or several."""

    def remove(self) -> None: ...


class Meetings(Protocol):
    """Where workers with different numbers of batches meet (uneven_inputs.py)."""

    def forward(self) -> None: ...

    def round_closed(self) -> None: ...


class Passes:
    """A forward begins, a backward ends.  Knows the schedules of all parts, the main one first."""

    def __init__(self, model: nn.Module, parameters: Mapping[str, nn.Parameter], buffers: BufferSync) -> None:
        self.schedules: list[Schedule] = []
        self.hooks: list[Removable] = []
        self.meetings: Meetings | None = None
        self.watch = ModelWatch(model, parameters)
        # Whether the last round began without a call that we have heard: the next forward may not be heard either.
        self.unheard = False
        self._model = model
        self._buffers = buffers
        # Whether a training forward has begun since the last round, and which submodules tell us.
        self._began = False
        self._end_queued = False
        self._heard: set[int] = {id(model)}

    # ---- forward

    def forward_begins(self) -> None:
        """The whole model is called."""
        self._begin_forward()
        TURNS.num_inside += 1

    def submodule_begins(self) -> None:
        """A submodule is called: inside the whole, or by itself (``model.encoder(x)``, a training_step)."""
        if self._buffers.under_way or (not self._began and torch.is_grad_enabled()):
            self._begin_forward()

    def _begin_forward(self) -> None:
        if torch.is_grad_enabled():
            self.watch.check()
            self._began = True
            for schedule in self.schedules:
                schedule.round.check_memory()
                if schedule.round.is_open and torch._C._current_graph_task_id() == -1:
                    self.abandon()  # a backward was left by an exception
                schedule.forward_begins()
                schedule.clock.forward_began()
            if self.meetings:
                self.meetings.forward()
        else:  # attention has kernels for evaluation that it does not use on parameters that are waited for
            for schedule in self.schedules:
                schedule.flush()
        self._buffers.finish()
        for schedule in self.schedules:
            schedule.before_compute()
        TURNS.compute()

    def forward_ended(self) -> None:
        TURNS.num_inside = max(0, TURNS.num_inside - 1)
        if torch.is_grad_enabled():
            for schedule in self.schedules:
                schedule.clock.forward_ended()

    def listen_to(self, modules: Iterable[nn.Module]) -> None:
        """Have these submodules tell when they are called."""
        for module in modules:
            if id(module) not in self._heard:
                self._heard.add(id(module))
                hook = outside_compiled(module, lambda *_: self.submodule_begins())
                self.hooks.append(module.register_forward_pre_hook(hook, prepend=True))

    # ---- backward: a round of all parts

    def await_end(self) -> None:
        if not self._end_queued:
            self._end_queued = True
            torch.autograd.Variable._execution_engine.queue_callback(self._backward_ended)

    def _backward_ended(self) -> None:
        self._end_queued = False
        if any(schedule.round.is_open for schedule in self.schedules):
            self.close()

    def close(self) -> None:
        """All parts leave before any is waited for, so that no two workers deadlock."""
        self._end_queued = False
        for schedule in self.schedules:
            schedule.launch_rest()
        if not self._began:  # nobody has called the model itself, so its submodules must tell when they begin
            self.listen_to(m for m in self._model.modules() if any(True for _ in m.parameters(recurse=False)))
        self.unheard = not self._began
        self._began = False
        if self.meetings:
            self.meetings.round_closed()
        else:
            self._buffers.launch()
        for schedule in self.schedules:
            schedule.end_round()

    def abandon(self) -> None:
        self.close()
        for schedule in self.schedules:
            schedule.drop_round()

    def join_empty(self) -> None:
        """Take part in a round of the other workers, without gradients of our own."""
        for schedule in self.schedules:
            schedule.join_empty()
        self.close()
