"""Which samples go to which worker in which step.  Pure; the same on every worker.

The order of an epoch's samples depends only on (seed, epoch).  A step takes the next ``batch_size`` of them and splits
them among the workers.  So neither the order nor the batches depend on the number of workers, and a position in the
epoch is one number: how many samples are done.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from weft.worker.rng import derived_seed


@dataclass(frozen=True, slots=True)
class LoaderPlace:
    """The worker that loads, and the seed of its session."""

    rank: int
    world_size: int
    seed: int


@dataclass(frozen=True, slots=True)
class Share:
    """One worker's part of a global batch: samples ``[start, stop)``."""

    start: int
    stop: int
    num_global: int
    # Every worker has at least one sample of this batch.
    reaches_all: bool = True

    @property
    def num_samples(self) -> int:
        return self.stop - self.start

    @property
    def weight(self) -> float:
        """The weight of this worker's mean gradient in that of the global batch."""
        return self.num_samples / self.num_global


def share_of(num_samples: int, rank: int, world_size: int) -> Share:
    """Split a batch as evenly as possible; the first workers get the remainder.

    >>> [share_of(10, rank, 4).num_samples for rank in range(4)]
    [3, 3, 2, 2]
    """
    each, odd = divmod(num_samples, world_size)
    start = rank * each + min(rank, odd)
    return Share(start, start + each + (rank < odd), num_samples, each > 0)


def batch_sizes(num_samples: int, batch_size: int, position: int, drop_last: bool) -> Iterator[int]:
    """The sizes of the remaining global batches of an epoch after ``position`` samples.

    >>> list(batch_sizes(10, 4, 0, drop_last=False))
    [4, 4, 2]
    """
    while position < num_samples:
        size = min(batch_size, num_samples - position)
        if size < batch_size and drop_last:
            return
        yield size
        position += size


def order_of_epoch(num_samples: int, seed: int, epoch: int, shuffle: bool) -> torch.Tensor:
    """All samples once, in the order of this epoch."""
    if not shuffle:
        return torch.arange(num_samples)
    generator = torch.Generator().manual_seed(derived_seed(seed, epoch))
    return torch.randperm(num_samples, generator=generator)


def own_indices(batch: torch.Tensor, share: Share) -> list[int]:
    """This worker's samples of a global batch.

    A batch of fewer samples than workers leaves some with none.  They still have to take part in the step, so they
    compute on the batch's first sample, with a :attr:`Share.weight` of 0.
    """
    return [int(k) for k in (batch[share.start : share.stop] if share.num_samples else batch[:1]).tolist()]
