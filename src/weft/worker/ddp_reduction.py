"""How DistributedDataParallel averages a bucket of gradients, where weft has to change that.

DDP accepts one communication hook in its life.  Two parts of weft need it, sometimes both for one model: a session
weights gradients when batches do not divide evenly, and crossover frees the device while buckets are in flight.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import GradBucket
from torch.nn.parallel import DistributedDataParallel

from weft.errors import UsageError
from weft.process.turns import TURNS

CommHook = Callable[[Any, GradBucket], torch.futures.Future[torch.Tensor]]


class DdpReduction:
    """Does exactly what DDP does without a hook, until it is told otherwise."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group = group
        # Not a division: DDP multiplies by the reciprocal, and with three workers the result differs.
        self.weight = 1.0 / group.size()
        self.users_hook: CommHook | None = None
        self.users_state: Any = None
        self.frees_device = False
        self._in_flight: list[torch.futures.Future[Any]] = []

    def launch(self, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        if self.users_hook is not None:
            future = self.users_hook(self.users_state, bucket)
        else:
            values = bucket.buffer().mul_(self.weight)
            # The future holds a list of one tensor; DDP wants the tensor.
            future = self._group.allreduce([values]).get_future().then(lambda done: done.value()[0])
        if self.frees_device:
            self._in_flight.append(future)
            if bucket.is_last():
                self._wait()
        return future

    def _wait(self) -> None:
        """For all buckets, before DDP waits for them in C++, where the device could not be freed."""
        in_flight, self._in_flight = self._in_flight, []
        with TURNS.yielded(later=True):
            for future in in_flight:
                future.wait()


_reductions: weakref.WeakKeyDictionary[DistributedDataParallel, DdpReduction] = weakref.WeakKeyDictionary()


def reduction_of(model: DistributedDataParallel) -> DdpReduction:
    """The model's reduction; the first call takes over from DDP's own."""
    if model not in _reductions:
        if model._comm_hooks:
            raise UsageError(
                "this model already has a communication hook, and DDP accepts only one: remove register_comm_hook and "
                "pass your hook to weft.crossover(model, comm_hook=..., comm_state=...)"
            )
        reduction = DdpReduction(model.process_group)
        # A lambda: DDP compares annotations as objects, and ours are strings.
        model.register_comm_hook(None, lambda _, bucket: reduction.launch(bucket))
        _reductions[model] = reduction
    return _reductions[model]
