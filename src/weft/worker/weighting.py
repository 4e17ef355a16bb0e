"""An uneven split must not change the update: each worker's gradient is weighted by its number of samples.

[Note: accumulated gradients]  A worker's weight is applied where that is free: when the gradient is copied for sending.
Several batches accumulated before one ``step()`` are sent together, with one weight for all of them, although the last
batch of an epoch may be split differently.  So the first batch's weight is applied when sending, and the gradients of
the other batches are multiplied by their relative weight as they are computed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from weft.errors import SessionError, UsageError
from weft.overlap.handle import Overlap, handle_of
from weft.worker.ddp_reduction import reduction_of
from weft.worker.sampling import Share
from weft.worker.shards import Registered


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
        self.parameters = list(parameters)
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
        for number, parameter in enumerate(self.parameters):
            if parameter.requires_grad and number not in self._hooks:
                add_hook: Any = parameter.register_hook
                self._hooks[number] = add_hook(self._weighted)

    def _weighted(self, gradient: torch.Tensor) -> torch.Tensor:
        return gradient if self._factor == 1.0 else gradient * self._factor


def choose_weightings(
    registered: Registered, may_be_uneven: bool, world_size: int, updates: UpdateCount
) -> list[ModelWeighting]:
    """One per synchronized model, none if all splits are even; refuses if an update would be wrong."""
    if not may_be_uneven or world_size == 1:
        return []
    weightings, unweighted = [], {}
    # By model: of one given under two names, each gradient must be multiplied only once.
    names = {model: name for name, model in registered.models.items()}
    for model, name in names.items():
        handle = handle_of(model)
        if handle is not None:
            parameters = [parameter for part in handle.parts for parameter in part.schedule.parameters]
            weightings.append(ModelWeighting(parameters, _share_of(handle), updates, world_size))
        elif isinstance(model, DistributedDataParallel):
            weightings.append(ModelWeighting(model.parameters(), _weight_of_ddp(model), updates, world_size))
        else:
            unweighted[name] = model
    # A model may be given both bare and wrapped.
    wrong_ids = registered.trained_parameters() - {id(p) for weighting in weightings for p in weighting.parameters}
    wrong = [name for name, model in unweighted.items() if any(id(p) in wrong_ids for p in model.parameters())]
    if wrong or not weightings:
        name = (wrong or list(unweighted) or ["model"])[0]
        raise SessionError(
            f"the batches do not divide evenly among {world_size} workers, and the gradients of {name}= cannot be "
            "weighted: give run.resume the wrapped model if it is trained with DistributedDataParallel, use "
            "weft.overlap, or choose a batch_size that divides evenly and drop_last=True"
        )
    return weightings


def _share_of(handle: Overlap) -> Callable[[float], None]:
    def apply(weight: float) -> None:
        for part in handle.parts:
            part.schedule.round.share = weight

    return apply


def _weight_of_ddp(model: DistributedDataParallel) -> Callable[[float], None]:
    try:
        reduction = reduction_of(model)
        if reduction.users_hook is not None:
            raise UsageError("weft.crossover was given a comm_hook=, which replaces the average")
    except UsageError as error:
        raise SessionError(
            f"the batches do not divide evenly among the workers, and the gradients of a model in "
            f"DistributedDataParallel cannot be weighted ({error}): remove its communication hook, use weft.overlap, "
            "or choose a batch_size that divides evenly and drop_last=True"
        ) from error

    def apply(weight: float) -> None:
        reduction.weight = weight

    return apply
