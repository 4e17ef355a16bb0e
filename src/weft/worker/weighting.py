"""An uneven split must not change the update: each worker's gradient is weighted by its number of samples.

[Note: accumulated gradients]  A worker's weight is applied where that is free: when the gradient is copied for sending.
Several batches accumulated before one ``step()`` are sent together, with one weight for all of them, although the last
batch of an epoch may be split differently.  So the first batch's weight is applied when sending, and the gradients of
the other batches are multiplied by their relative weight as they are computed.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import GradBucket
from torch.nn.parallel import DistributedDataParallel

from weft.errors import SessionError
from weft.overlap.handle import Overlap
from weft.worker.sampling import Share


class UpdateCount:
    """Counts optimizer steps, which end an accumulation of gradients; the same on every worker."""

    def __init__(self, optimizers: Iterable[torch.optim.Optimizer]) -> None:
        self.num_updates = 0
        self._hooks = [optimizer.register_step_post_hook(self._stepped) for optimizer in optimizers]

    @property
    def counts(self) -> bool:
        """Whether there is an optimizer to count."""
        return bool(self._hooks)

    def close(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def _stepped(self, *_: object) -> None:
        self.num_updates += 1


class ModelWeighting:
    """Sets the weight of this worker's gradient of one model; ``apply`` sets the weight used when sending."""

    def __init__(
        self, parameters: Iterable[nn.Parameter], apply: Callable[[float], None], updates: UpdateCount, world_size: int
    ) -> None:
        self._parameters = list(parameters)
        self._apply = apply
        self._updates = updates
        self._even = 1.0 / world_size
        self._num_updates = -1
        self._applied = self._even
        self._factor = 1.0
        self._hooks: dict[int, Any] = {}

    def set(self, share: Share) -> None:
        if self._updates.counts and self._updates.num_updates != self._num_updates:
            # A weight of 0 could not be corrected by a factor in a later batch.
            self._applied = share.weight if share.reaches_all else self._even
            self._num_updates = self._updates.num_updates
        self._apply(self._applied)
        self._factor = share.weight / self._applied
        if self._factor != 1.0:
            self._hook_up()

    def close(self) -> None:
        for hook in self._hooks.values():
            hook.remove()
        self._hooks = {}
        self._apply(self._even)

    def _hook_up(self) -> None:
        for number, parameter in enumerate(self._parameters):
            if parameter.requires_grad and number not in self._hooks:
                add_hook: Any = parameter.register_hook
                self._hooks[number] = add_hook(self._weighted)

    def _weighted(self, gradient: torch.Tensor) -> torch.Tensor:
        return gradient if self._factor == 1.0 else gradient * self._factor


class _DdpShare:
    """A DDP communication hook that multiplies by the share instead of 1/P."""

    def __init__(self, model: DistributedDataParallel) -> None:
        self._weight = 1.0 / dist.get_world_size(model.process_group)
        try:
            # A lambda: DDP compares annotations as objects, and ours are strings.
            model.register_comm_hook(model.process_group, lambda group, bucket: self._reduce(group, bucket))
        except RuntimeError as error:
            raise SessionError(
                f"the batches do not divide evenly among the workers, and DistributedDataParallel does not accept a "
                f"hook to weight the gradients ({error}): remove its communication hook, use weft.overlap, or choose "
                "a batch_size that divides evenly and drop_last=True"
            ) from error

    def apply(self, weight: float) -> None:
        self._weight = weight

    def _reduce(self, group: Any, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        buffer = bucket.buffer().mul_(self._weight)
        future: Any = dist.all_reduce(buffer, group=group, async_op=True).get_future()
        result: torch.futures.Future[torch.Tensor] = future.then(lambda done: done.value()[0])
        return result


# A model accepts one hook in its life, and may be trained by several calls of ``run.steps``.
_ddp_shares: weakref.WeakKeyDictionary[DistributedDataParallel, _DdpShare] = weakref.WeakKeyDictionary()


def choose_weightings(
    models: list[nn.Module], handles: list[Overlap], may_be_uneven: bool, world_size: int, updates: UpdateCount
) -> list[ModelWeighting]:
    """One per model given to ``run.resume``, none if all splits are even; refuses if an update would be wrong."""
    if not may_be_uneven or world_size == 1:
        return []
    weightings = []
    for handle in handles:
        parameters = [parameter for part in handle.parts for parameter in part.schedule.parameters]
        weightings.append(ModelWeighting(parameters, _share_of(handle), updates, world_size))
    for model in models:
        if isinstance(model, DistributedDataParallel):
            if model not in _ddp_shares:
                _ddp_shares[model] = _DdpShare(model)
            weightings.append(ModelWeighting(model.parameters(), _ddp_shares[model].apply, updates, world_size))
    if not weightings:
        raise SessionError(
            f"the batches do not divide evenly among {world_size} workers, and the gradients cannot be weighted "
            "because no model that is overlapped or wrapped in DistributedDataParallel was given to "
            "run.resume(model=...): give it there, or choose a batch_size that divides evenly and drop_last=True"
        )
    return weightings


def _share_of(handle: Overlap) -> Callable[[float], None]:
    def apply(weight: float) -> None:
        for part in handle.parts:
            part.schedule.round.share = weight

    return apply
