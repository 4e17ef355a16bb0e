"""An uneven split must not change the update: each worker's gradient counts by its number of samples."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import GradBucket
from torch.nn.parallel import DistributedDataParallel

from weft.errors import SessionError
from weft.overlap.handle import Overlap
from weft.worker.sampling import Share


class Weighting:
    """Sets what this worker's gradient counts for, before each step."""

    def set(self, share: Share) -> None:
        """Every worker counts the same."""


class OverlapWeighting(Weighting):
    """The schedule multiplies by the share instead of 1/P."""

    def __init__(self, handles: list[Overlap]) -> None:
        self._handles = handles

    def set(self, share: Share) -> None:
        for handle in self._handles:
            handle.schedule.share = share.weight


class DdpWeighting(Weighting):
    """A communication hook does."""

    def __init__(self, models: list[DistributedDataParallel]) -> None:
        self._weight = 1.0 / dist.get_world_size()
        for model in models:
            try:
                # A lambda: DDP compares annotations as objects, and ours are strings.
                model.register_comm_hook(model.process_group, lambda group, bucket: self._reduce(group, bucket))
            except RuntimeError as error:
                raise SessionError(
                    f"the batches do not divide evenly among the workers, and DistributedDataParallel takes no hook to "
                    f"weight the gradients ({error}): leave its communication hook out, use weft.overlap, or choose a "
                    "batch_size that divides and drop_last=True"
                ) from error

    def set(self, share: Share) -> None:
        self._weight = share.weight

    def _reduce(self, group: Any, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        buffer = bucket.buffer().mul_(self._weight)
        future: Any = dist.all_reduce(buffer, group=group, async_op=True).get_future()
        result: torch.futures.Future[torch.Tensor] = future.then(lambda done: done.value()[0])
        return result


def choose_weighting(
    models: list[nn.Module], handles: list[Overlap], may_be_uneven: bool, world_size: int
) -> Weighting:
    """Fits the models given to ``run.resume``; refuses where uneven batches would give a wrong update."""
    if handles:
        return OverlapWeighting(handles)
    if not may_be_uneven or world_size == 1:
        return Weighting()
    wrapped = [model for model in models if isinstance(model, DistributedDataParallel)]
    if not wrapped:
        raise SessionError(
            f"the batches do not divide evenly among {world_size} workers, and the gradients cannot be weighted "
            "because no model that is overlapped or wrapped in DistributedDataParallel was given to "
            "run.resume(model=...): give it there, or choose a batch_size that divides and drop_last=True"
        )
    return DdpWeighting(wrapped)
