"""An uneven split must not change the update: each worker's gradient counts by its number of samples.

[Note: accumulated gradients]  The share a worker's gradient counts for is applied where it is free, when the gradient
is copied for sending.  Several batches accumulated before one ``step()`` are sent together, so one factor has to do
for all of them, although the last batch of an epoch may be split otherwise.  Then the first batch's share is the one
applied at the end, and the gradients of the others are multiplied, as they are computed, by what they count for in
comparison.  So every batch of an accumulation counts as it does with one worker.
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
from weft.worker.updates import UpdateCount


class Weighting:
    """Sets what this worker's gradient counts for, before each step."""

    def set(self, share: Share) -> None:
        """Every worker counts the same."""

    def close(self) -> None:
        """Nothing of ours is left on the models."""


class ModelWeighting(Weighting):
    """One model whose gradients are multiplied by ``apply``'s number when they are sent."""

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
            # Somebody's share may be nothing; no factor could make good for that in a later batch.
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


class SeveralWeightings(Weighting):
    """All models of a job."""

    def __init__(self, parts: list[ModelWeighting]) -> None:
        self._parts = parts

    def set(self, share: Share) -> None:
        for part in self._parts:
            part.set(share)

    def close(self) -> None:
        for part in self._parts:
            part.close()


class _DdpShare:
    """A communication hook multiplies by the share instead of 1/P."""

    def __init__(self, model: DistributedDataParallel) -> None:
        self._weight = 1.0 / dist.get_world_size(model.process_group)
        try:
            # A lambda: DDP compares annotations as objects, and ours are strings.
            model.register_comm_hook(model.process_group, lambda group, bucket: self._reduce(group, bucket))
        except RuntimeError as error:
            raise SessionError(
                f"the batches do not divide evenly among the workers, and DistributedDataParallel takes no hook to "
                f"weight the gradients ({error}): leave its communication hook out, use weft.overlap, or choose a "
                "batch_size that divides and drop_last=True"
            ) from error

    def apply(self, weight: float) -> None:
        self._weight = weight

    def _reduce(self, group: Any, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        buffer = bucket.buffer().mul_(self._weight)
        future: Any = dist.all_reduce(buffer, group=group, async_op=True).get_future()
        result: torch.futures.Future[torch.Tensor] = future.then(lambda done: done.value()[0])
        return result


# A model takes one hook in its life, and may be trained by several calls of ``run.steps``.
_ddp_shares: weakref.WeakKeyDictionary[DistributedDataParallel, _DdpShare] = weakref.WeakKeyDictionary()


def choose_weighting(
    models: list[nn.Module], handles: list[Overlap], may_be_uneven: bool, world_size: int, updates: UpdateCount
) -> Weighting:
    """Fits the models given to ``run.resume``; refuses where uneven batches would give a wrong update."""
    if not may_be_uneven or world_size == 1:
        return Weighting()
    parts = []
    for handle in handles:
        parameters = [parameter for part in handle.parts for parameter in part.schedule.parameters]
        parts.append(ModelWeighting(parameters, _share_of(handle), updates, world_size))
    for model in models:
        if isinstance(model, DistributedDataParallel):
            if model not in _ddp_shares:
                _ddp_shares[model] = _DdpShare(model)
            parts.append(ModelWeighting(model.parameters(), _ddp_shares[model].apply, updates, world_size))
    if not parts:
        raise SessionError(
            f"the batches do not divide evenly among {world_size} workers, and the gradients cannot be weighted "
            "because no model that is overlapped or wrapped in DistributedDataParallel was given to "
            "run.resume(model=...): give it there, or choose a batch_size that divides and drop_last=True"
        )
    return SeveralWeightings(parts)


def _share_of(handle: Overlap) -> Callable[[float], None]:
    def apply(weight: float) -> None:
        for part in handle.parts:
            part.schedule.round.share = weight

    return apply
