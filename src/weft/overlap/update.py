"""The optimizer's arithmetic on this worker's shard.

An optimizer whose arithmetic is element by element gives the same bits on a slice as on the whole, so each
worker runs it on its shard of each bucket and keeps only that part of the state.  The user's optimizer object
stays what it is, with its groups, schedulers and state dict; per bucket we make a small one of the same class
over the shard's slices and hand it the options in force at ``step()``.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from weft.overlap.bucket import Bucket
from weft.overlap.device import CPU, Device
from weft.overlap.layout import Piece
from weft.overlap.unsure import Guess

# Exactly these classes: a subclass may do anything in its step.
ELEMENT_WISE: frozenset[type[torch.optim.Optimizer]] = frozenset(
    {
        torch.optim.SGD,
        torch.optim.Adam,
        torch.optim.AdamW,
        torch.optim.NAdam,
        torch.optim.RAdam,
        torch.optim.Adamax,
        torch.optim.Adadelta,
        torch.optim.Adagrad,
        torch.optim.ASGD,
        torch.optim.RMSprop,
        torch.optim.Rprop,
    }
)

Options = list[dict[str, Any]]

# An update is a dozen passes over parameter, gradient and state.  In blocks that fit the cache it took 30 ms where
# one long pass after the other took 73 to 106 ms (AdamW, 12.5 M elements, 1 MiB of second-level cache).
_CPU_BLOCK = 1 << 17


def is_element_wise(optimizer: torch.optim.Optimizer) -> bool:
    """Whether a slice of the update is the update of the slice."""
    return type(optimizer) in ELEMENT_WISE


def options_of(optimizer: torch.optim.Optimizer) -> Options:
    """Every group's options (learning rate, betas ...) without its parameters."""
    return [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]


def frozen(options: Options) -> list[dict[str, Any]]:
    """A copy that later changes do not reach and that ``==`` can compare."""
    return [
        {key: value.tolist() if isinstance(value, torch.Tensor) else value for key, value in group.items()}
        for group in options
    ]


def group_numbers(optimizer: torch.optim.Optimizer, parameters: Sequence[torch.nn.Parameter]) -> list[int]:
    """For each parameter, the number of the optimizer's group it is in."""
    group_of = {id(p): g for g, group in enumerate(optimizer.param_groups) for p in group["params"]}
    return [group_of[id(parameter)] for parameter in parameters]


def amp_attributes(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """What GradScaler leaves on an optimizer that unscales inside its own step (the fused ones)."""
    if not getattr(optimizer, "_step_supports_amp_scaling", False):
        return {}
    return {name: getattr(optimizer, name) for name in ("grad_scale", "found_inf") if hasattr(optimizer, name)}


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
            # AdamW stores a default that its constructor does not take; the groups carry it anyway.
            defaults = {key: value for key, value in optimizer.defaults.items() if key in accepted}
            self.optimizer = type(optimizer)(groups, **defaults)

    def apply(self, options: Options, amp: dict[str, Any]) -> None:
        """Update the shard in place with its reduced gradient; what no worker used stays untouched."""
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
        for name in amp:  # GradScaler takes them away after each step, too
            delattr(self.optimizer, name)
        for _, run in self.slices:
            run.grad = None

    def settle(self) -> None:
        """Have the state right where the last update was a guess; before anybody looks at it."""
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
