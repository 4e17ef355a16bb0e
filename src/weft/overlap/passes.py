"""Forward and backward passes of an overlapped model, over all of its parts; called by the model's hooks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import torch
from torch import nn

from weft.errors import OverlapError
from weft.overlap.buffers import BufferSync
from weft.overlap.compiled import outside_compiled
from weft.overlap.schedule_interface import Schedule
from weft.process.turns import TURNS


class Removable(Protocol):
    """A hook, or several."""

    def remove(self) -> None: ...


class Meetings(Protocol):
    """Synchronizes workers with different numbers of batches (uneven_inputs.py)."""

    def forward(self) -> None: ...
    def round_closed(self) -> None: ...


class ModelWatch:
    """Checks that the model still holds the parameters given to weft.overlap; tens of microseconds per step.

    ``load_state_dict(assign=True)``, ``resize_token_embeddings``, and ``module.weight = nn.Parameter(...)`` replace
    them; the optimizer and our hooks would keep the old ones.
    """

    def __init__(self, model: nn.Module, parameters: Mapping[str, nn.Parameter]) -> None:
        self._model = model
        self._parameters = parameters
        self._places = self._all_places()

    def check(self) -> None:
        if all(place.get(name) is held for place, name, held in self._places):
            return
        # Fine as long as our parameters are still in there (a parametrization, a wrapper).
        present = {id(parameter) for parameter in self._model.parameters()}
        replaced = [name for name, parameter in self._parameters.items() if id(parameter) not in present]
        if replaced:
            raise OverlapError(
                f"parameter {replaced[0]} was replaced by another object after weft.overlap was called "
                "(load_state_dict(assign=True)? resize_token_embeddings()? module.weight = nn.Parameter(...)?), and "
                "the optimizer still holds the old one: call detach() on every worker, make the change, make an "
                "optimizer with the new parameters, then call weft.overlap again"
            )
        self._places = self._all_places()

    def _all_places(self) -> list[tuple[dict[str, Any], str, Any]]:
        return [
            (place, name, held)
            for module in self._model.modules()
            for place in (module._parameters, module._modules)
            if isinstance(place, dict)  # a script module's are not, and cannot be replaced
            for name, held in place.items()
        ]


class Passes:
    """Handles the start of a forward and the end of a backward for the schedules of all parts, the main one first."""

    def __init__(self, model: nn.Module, parameters: Mapping[str, nn.Parameter], buffers: BufferSync) -> None:
        self.schedules: list[Schedule] = []
        self.hooks: list[Removable] = []
        self.meetings: Meetings | None = None
        self.watch = ModelWatch(model, parameters)
        # Whether the last round began without a forward that we noticed: we may miss the next one, too.
        self.unheard = False
        self._model = model
        self._buffers = buffers
        # Whether a training forward has begun since the last round, and which modules have a hook that notices it.
        self._began = False
        self._end_queued = False
        self._heard: set[int] = {id(model)}

    # ---- forward

    def forward_begins(self) -> None:
        """The whole model is called."""
        self._begin_forward()
        TURNS.num_inside += 1

    def submodule_begins(self) -> None:
        """A submodule is called: inside the model, or by itself (``model.encoder(x)``, a training_step)."""
        if self._buffers.in_flight or (not self._began and torch.is_grad_enabled()):
            self._begin_forward()

    def _begin_forward(self) -> None:
        if torch.is_grad_enabled():
            self.watch.check()
            self._began = True
            for schedule in self.schedules:
                schedule.round.check_memory()
                if schedule.round.is_open and torch._C._current_graph_task_id() == -1:
                    self.abandon()  # an exception ended a backward
                schedule.forward_begins()
                schedule.clock.forward_began()
            if self.meetings:
                self.meetings.forward()
        else:  # attention does not use its evaluation kernels with guarded parameters
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
        """Install hooks that notice calls of these submodules."""
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
        """All parts launch before any waits, so that no two workers deadlock."""
        self._end_queued = False
        for schedule in self.schedules:
            schedule.launch_rest()
        if not self._began:  # the model itself was not called, so its submodules need hooks
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
        """Take part in a round of the other workers without gradients of our own."""
        for schedule in self.schedules:
            schedule.join_empty()
        self.close()
