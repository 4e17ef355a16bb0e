"""Measures the gradient noise scale of a training run, once every few steps.

[Note: where the norms come from]  Both norms are taken before the script sees the gradients, so neither clipping nor a
loss scaler comes between them.  A worker's own gradient passes through a hook of every parameter during backward.  The
average over all workers is available when backward ends: DDP and overlap finish their work in a callback that they
queue during backward, so our callback queues another one, which runs after theirs.  For an overlapped model, it is a
collective, and it waits for communication that would otherwise be hidden: one reason to measure only occasionally.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from weft.errors import OverlapError
from weft.overlap.handle import handle_of
from weft.perf.gradient_noise import NoiseScale
from weft.worker.sampling import Share
from weft.worker.weighting import UpdateCount

_MEASURE_EVERY = 8
"""Steps from one measurement to the next."""


class NoiseMeter:
    """Called around every step, by every worker; measures with two or more workers."""

    def __init__(
        self, models: Sequence[nn.Module], world_size: int, updates: UpdateCount, say: Callable[[str], None]
    ) -> None:
        self.noise = NoiseScale()
        self._updates = updates
        self._say = say
        self._world_size = world_size
        averaged = [one for one in models if handle_of(one) or isinstance(one, DistributedDataParallel)]
        self._parameters = [parameter for model in averaged for parameter in model.parameters()]
        self._hooks: list[Any] = []
        self._own_sqr: list[torch.Tensor] = []
        self._sqrs: tuple[torch.Tensor, torch.Tensor] | None = None
        self._num_updates = updates.num_updates
        self._num_whole = 0
        """Consecutive steps that ended with an optimizer update; 0 while the script accumulates gradients."""
        self._num_steps = 0
        if world_size > 1 and not self._parameters:
            self._give_up("no model that is overlapped or wrapped in DistributedDataParallel was given to run.resume")

    def before_step(self, share: Share) -> None:
        self._num_steps += 1
        is_even = share.num_samples * self._world_size == share.num_global
        if self._world_size == 1 or not self._parameters or not is_even:
            return
        # With accumulation, gradients are averaged only in the last backward; two whole steps in a row rule that out.
        if self._num_whole >= 2 and self._num_steps % _MEASURE_EVERY == 0:
            self._own_sqr, self._sqrs = [], None
            for parameter in self._parameters:
                if parameter.requires_grad:
                    add_hook: Any = parameter.register_hook
                    self._hooks.append(add_hook(self._seen))

    def after_step(self, share: Share) -> None:
        whole = self._updates.num_updates != self._num_updates
        self._num_updates = self._updates.num_updates
        self._num_whole = self._num_whole + 1 if whole else 0
        self.close()
        if self._sqrs is not None and whole:
            own_sqr, all_sqr = (float(value) for value in self._sqrs)
            self.noise.measured(share.num_samples, own_sqr, share.num_global, all_sqr)
        self._sqrs = None

    def close(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def _seen(self, gradient: torch.Tensor) -> None:
        if not self._own_sqr:
            self._queue(lambda: self._queue(self._backward_ended))
        self._own_sqr.append(_sqr(gradient.detach()))

    @staticmethod
    def _queue(callback: Callable[[], None]) -> None:
        engine: Any = torch.autograd.Variable._execution_engine
        engine.queue_callback(callback)

    def _backward_ended(self) -> None:
        if self._sqrs is not None or not self._hooks:
            return  # a second backward in the same step: the first one counts
        try:
            found = [_sqr(parameter.grad) for parameter in self._parameters if parameter.grad is not None]
        except OverlapError as error:
            self._give_up(str(error))
            return
        self._sqrs = torch.stack(self._own_sqr).sum(), torch.stack(found).sum()

    def _give_up(self, why: str) -> None:
        self._parameters = []
        self._say(f"the gradient noise cannot be measured, so the batch size does not change: {why}")


def _sqr(gradient: torch.Tensor) -> torch.Tensor:
    """The squared norm; of a sharded gradient, over all workers."""
    norm: torch.Tensor = torch.linalg.vector_norm(gradient)
    return norm.double().square()
