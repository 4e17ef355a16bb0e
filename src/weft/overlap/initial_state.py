"""The state of an optimizer after a first step that changes nothing: zero gradient, learning rate zero.

``torch.distributed.checkpoint`` makes such a step when it finds an optimizer without state, to learn its structure.
With weft, a step is collective, so that state is computed separately, and the optimizer stays unchanged.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Sequence
from typing import Any

import torch

from weft.overlap.schedule_interface import Schedule


def initial_state(optimizer: torch.optim.Optimizer, parameter: torch.nn.Parameter) -> dict[str, Any]:
    """What ``optimizer.state[parameter]`` would be.  Not collective."""
    group = next(g for g in optimizer.param_groups if any(p is parameter for p in g["params"]))
    stand_in = torch.nn.Parameter(parameter.detach().clone())
    stand_in.grad = torch.zeros_like(stand_in)
    rate = {"lr": torch.tensor(0.0) if isinstance(group["lr"], torch.Tensor) else 0.0} if "lr" in group else {}
    scratch = object.__new__(type(optimizer))
    # Not a new instance: that would lose additional attributes of a user's class.
    scratch.__dict__.update(
        {name: OrderedDict() if name.endswith("_hooks") else value for name, value in optimizer.__dict__.items()},
        param_groups=[{**group, **rate, "params": [stand_in]}],
        state=defaultdict(dict),
    )
    scratch.__dict__.pop("step", None)  # a scheduler's wrapper around the real optimizer's step
    scratch.step(closure=None)
    return dict(scratch.state[stand_in])


class ReplicatedState(defaultdict[Any, Any]):
    """``optimizer.state`` of a replicated optimizer: ordinary, but not falsy when empty.

    After a truth test, an empty one shows the state after a first step, until something changes.  While the optimizer
    itself makes a step, it behaves normally.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, parameters: Sequence[torch.nn.Parameter]) -> None:
        super().__init__(dict, optimizer.state)
        self._optimizer = optimizer
        self._parameters = parameters
        self.is_stepping = False
        self._shows_initial = False

    def __bool__(self) -> bool:
        self._shows_initial = not self.is_stepping
        return len(self) > 0 or not self.is_stepping

    @property
    def _initial(self) -> dict[Any, Any]:
        if not self._shows_initial or self.is_stepping or len(self) > 0:
            return {}
        return {p: initial_state(self._optimizer, p) for p in self._parameters}

    def __getitem__(self, key: Any) -> Any:
        initial = self._initial
        return initial[key] if key in initial else super().__getitem__(key)

    def items(self) -> Any:
        return self._initial.items() or super().items()

    def __reduce__(self) -> Any:
        return defaultdict, (dict,), None, None, iter(dict(self).items())


class WholeState:
    """The state of a replicated optimizer, or of no optimizer: nothing to exchange or to move."""

    def __init__(self, optimizer: torch.optim.Optimizer | None, schedule: Schedule) -> None:
        self._optimizer = optimizer
        self._schedule = schedule
        self.adopt()

    def adopt(self) -> None:
        optimizer = self._optimizer
        if optimizer is not None:
            if not isinstance(optimizer.state, ReplicatedState):
                optimizer.state = ReplicatedState(optimizer, self._schedule.parameters)
            optimizer.state.is_stepping = False

    def before_step(self) -> None:
        self.adopt()
        if self._optimizer is not None and isinstance(self._optimizer.state, ReplicatedState):
            self._optimizer.state.is_stepping = True

    def after_step(self) -> None:
        self.adopt()

    def move_to(self, order: Sequence[int], cuts: Sequence[Sequence[int]]) -> None:
        self._schedule.take_up(order, cuts)

    def give_back(self) -> None:
        if self._optimizer is not None:
            self._optimizer.state = defaultdict(dict, dict(self._optimizer.state))
