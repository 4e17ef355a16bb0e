"""One optimizer's part of a model: its parameters with their schedule, tuner, and state.

A model trained by several optimizers has a part for each, and one without an optimizer for trainable parameters that
belong to none: their gradients are averaged, as with DDP.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import torch
from torch import nn

from weft.errors import OverlapError
from weft.overlap.schedule_interface import Schedule
from weft.overlap.tuning import Tuner


class OptimizerState(Protocol):
    """``optimizer.state`` while the model is overlapped: sharded_state.py, or initial_state.py if replicated."""

    def adopt(self) -> None:
        """The optimizer may have a new state, from ``load_state_dict`` or an assignment."""

    def before_step(self) -> None: ...
    def after_step(self) -> None: ...

    def move_to(self, order: Sequence[int], cuts: Sequence[Sequence[int]]) -> None:
        """Switch to another plan, with parameters and state.  Collective; all workers have drained theirs."""

    def give_back(self) -> None:
        """Make ``optimizer.state`` an ordinary one.  Collective."""


class Part:
    """What hooks of one optimizer call; made by attach.py, held by the handle."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer | None,
        schedule: Schedule,
        state: OptimizerState,
        *,
        ignored: Iterable[nn.Parameter] = (),
        tune: bool = False,
    ) -> None:
        self.optimizer = optimizer
        self.schedule = schedule
        self.state = state
        self.tuner = Tuner(schedule, self.move_to, tune=tune)
        managed = {id(parameter) for parameter in (*schedule.parameters, *ignored)}
        self._others = [p for p in self._optimizer_parameters() if id(p) not in managed]
        self._num_groups = len(optimizer.param_groups) if optimizer else 0

    def _optimizer_parameters(self) -> list[nn.Parameter]:
        return [p for g in self.optimizer.param_groups for p in g["params"]] if self.optimizer else []

    # ---- called by the optimizer's hooks

    def before_step(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        stray = self.optimizer is not None and len(self.optimizer.param_groups) != self._num_groups
        if stray or any(parameter.grad is not None for parameter in self._others):
            raise OverlapError(
                "parameters were added to the optimizer, or unfrozen, after weft.overlap was called; their gradients "
                "would not be averaged: call detach() and weft.overlap again"
            )
        self.state.before_step()
        return self.schedule.before_step(args, kwargs)

    def after_step(self) -> None:
        self.schedule.after_step()
        self.state.after_step()

    # ---- another plan, and the end

    def move_to(self, order: Sequence[int], cuts: Sequence[Sequence[int]]) -> None:
        """Switch to another plan, with parameters and state.  Collective; between steps."""
        self.schedule.drain()
        self.schedule.meet()
        self.state.move_to(order, cuts)

    def give_back(self) -> None:
        """Turn state, gradients, and memory back into ordinary ones.  Collective; nothing is in flight."""
        self.state.give_back()
        self.schedule.give_back_gradients()
        self.schedule.memory.release()
