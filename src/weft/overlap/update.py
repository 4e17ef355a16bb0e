"""The optimizer's arithmetic on this worker's shard.

An element-wise optimizer gives the same bits on a slice as on the whole tensor, so each worker runs it on its shard of
each bucket and keeps only that part of the state.  The user's optimizer object keeps its groups, schedulers, and state
dict; for each bucket there is a small optimizer of the same class over the shard's slices, with the options in effect
at ``step()``.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import optim

from weft.overlap.bucket import Bucket
from weft.overlap.device import CPU, Device
from weft.overlap.layout import Piece

# Exactly these classes: a subclass may do anything in its step.
ELEMENT_WISE: frozenset[type[torch.optim.Optimizer]] = frozenset(
    {
        *(optim.SGD, optim.ASGD, optim.RMSprop, optim.Rprop, optim.Adadelta, optim.Adagrad),
        *(optim.Adam, optim.AdamW, optim.NAdam, optim.RAdam, optim.Adamax),
    }
)

Options = list[dict[str, Any]]

# An update makes a dozen passes over parameter, gradient, and state.  In blocks that fit into the cache it took 30 ms
# instead of 73 to 106 ms (AdamW, 12.5 M elements, 1 MiB of second-level cache).
_CPU_BLOCK = 1 << 17


def is_element_wise(optimizer: torch.optim.Optimizer) -> bool:
    """Whether a slice of the update is the update of the slice."""
    return type(optimizer) in ELEMENT_WISE


def options_of(optimizer: torch.optim.Optimizer) -> Options:
    """Every group's options (learning rate, betas ...) without its parameters."""
    return [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]


def frozen(options: Options) -> list[dict[str, Any]]:
    """A copy that later changes do not affect and that can be compared with ``==``."""
    return [
        {key: value.tolist() if isinstance(value, torch.Tensor) else value for key, value in group.items()}
        for group in options
    ]


def group_numbers(optimizer: torch.optim.Optimizer, parameters: Sequence[torch.nn.Parameter]) -> list[int]:
    """For each parameter, the number of the optimizer's group it is in."""
    group_of = {id(p): g for g, group in enumerate(optimizer.param_groups) for p in group["params"]}
    return [group_of[id(parameter)] for parameter in parameters]


def amp_attributes(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Attributes that GradScaler sets on an optimizer that unscales in its own step (the fused ones)."""
    if not getattr(optimizer, "_step_supports_amp_scaling", False):
        return {}
    return {name: getattr(optimizer, name) for name in ("grad_scale", "found_inf") if hasattr(optimizer, name)}


class Guess:
    """One bucket's update of slices of which the host does not know whether any worker used them.

    A parameter that no worker used in a step stays untouched.  The host knows whether this worker used it; whether
    another one did comes with the reduced gradients, for which it would have to wait on a GPU.  So it does not look:
    the update runs, the device undoes it where the count is zero, and the host corrects step counts and the like one
    step later.  Values are the same bits either way.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        slices: Sequence[tuple[int, torch.Tensor]],
        counts: torch.Tensor,
        device: Device,
    ) -> None:
        """Call it before the update; each slice comes with its parameter's position in ``counts``."""
        self._state = optimizer.state
        self._slices = slices
        self._counts = counts
        self._device = device
        self._old_values = [run.detach().clone() for _, run in slices]
        self._old_states = [_copied(self._state.get(run)) for _, run in slices]

    def take_back(self) -> None:
        """After the update: where no worker used the parameter, the device restores the old elements."""
        for (place, run), values, state in zip(self._slices, self._old_values, self._old_states, strict=True):
            used = self._counts[place] > 0
            run.copy_(torch.where(used, run, values))
            for key, old in (state or {}).items():
                if _has_elements(old):
                    self._state[run][key].copy_(torch.where(used, self._state[run][key], old))
        self._old_values = []
        self._read_counts = self._device.read_later(self._counts)

    def settle(self) -> None:
        """Correct what the host keeps.  Waits only for the previous step's reduction."""
        counts = self._read_counts()
        for (place, run), state in zip(self._slices, self._old_states, strict=True):
            if counts[place] > 0:
                continue
            if state is None:
                self._state.pop(run, None)
            else:
                now = self._state[run]
                self._state[run] = {key: now[key] if _has_elements(old) else old for key, old in state.items()}


def _copied(state: dict[str, Any] | None) -> dict[str, Any] | None:
    if state is None:
        return None
    return {key: value.clone() if isinstance(value, torch.Tensor) else value for key, value in state.items()}


def _has_elements(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dim() > 0


class ShardUpdate:
    """The optimizer of one bucket's own shard."""

    def __init__(
        self, bucket: Bucket, optimizer: torch.optim.Optimizer, group_of: Sequence[int], device: Device = CPU
    ) -> None:
        self.bucket = bucket
        self._device = device
        self._guess: Guess | None = None
        self._position = {parameter: k for k, parameter in enumerate(bucket.plan.parameters)}
        self.slices: list[tuple[Piece, torch.Tensor]] = [
            (block, bucket.own_parameter_run(block).detach())
            for piece in bucket.own
            for block in (_blocks(piece) if bucket.exchange.region.device.type == "cpu" else [piece])
        ]
        by_group: dict[int, list[torch.Tensor]] = {}
        for piece, run in self.slices:
            by_group.setdefault(group_of[piece.parameter], []).append(run)
        self._groups = sorted(by_group)
        self.optimizer: torch.optim.Optimizer | None = None
        if by_group:
            options = options_of(optimizer)
            groups = [{**options[g], "params": by_group[g]} for g in self._groups]
            accepted = inspect.signature(type(optimizer).__init__).parameters
            # AdamW stores a default that its constructor does not accept; the groups have it anyway.
            defaults = {key: value for key, value in optimizer.defaults.items() if key in accepted}
            self.optimizer = type(optimizer)(groups, **defaults)

    def apply(self, options: Options, amp: dict[str, Any]) -> None:
        """Update the shard in place with its reduced gradient; parameters that no worker used stay untouched."""
        if self.optimizer is None:
            return
        self.settle()
        used = self._used()
        for piece, run in self.slices:
            if used[self._position[piece.parameter]]:
                gradient = self.bucket.own_gradient_run(piece)
                run.grad = gradient if gradient.dtype == run.dtype else gradient.to(run.dtype)
        for inner, number in zip(self.optimizer.param_groups, self._groups, strict=True):
            inner.update(options[number])
        for name, value in amp.items():
            setattr(self.optimizer, name, value)
        self.optimizer.step()
        if self._guess is not None:
            self._guess.take_back()
        for name in amp:  # as GradScaler does after each step
            delattr(self.optimizer, name)
        for _, run in self.slices:
            run.grad = None

    def settle(self) -> None:
        """Correct the state if the last update was a guess; call it before reading the state."""
        guess, self._guess = self._guess, None
        if guess is not None:
            guess.settle()

    def _used(self) -> list[bool]:
        bucket = self.bucket
        if bucket.complete or not self._device.has_streams:
            return bucket.used()
        assert self.optimizer is not None
        unsure = [
            (self._position[piece.parameter], run)
            for piece, run in self.slices
            if piece.parameter not in bucket.arrived and piece.parameter not in bucket.skipped
        ]
        self._guess = Guess(self.optimizer, unsure, bucket.counts(), self._device) if unsure else None
        return [parameter not in bucket.skipped for parameter in bucket.plan.parameters]


def _blocks(piece: Piece) -> list[Piece]:
    return [
        replace(piece, start=piece.start + k, offset=piece.offset + k, length=min(_CPU_BLOCK, piece.length - k))
        for k in range(0, max(piece.length, 1), _CPU_BLOCK)
    ]


def run_closure(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """``step(closure)``: the backward inside the closure must have ended before shards can be updated."""
    closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
    if closure is None:
        return args, kwargs
    with torch.enable_grad():
        loss = closure()
    kwargs = {key: value for key, value in kwargs.items() if key != "closure"}
    return (args[0], lambda: loss), kwargs
