"""``weft.ElasticSampler``: every sample exactly once per epoch, even when the number of workers changes in mid-epoch.

For loops that weft does not start, such as torchrun with DDP, Accelerate, or transformers.  Their samplers record a
number of steps, which stands for different samples once the number of workers changes; this one records how many
samples of the epoch are done.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sized
from typing import Any

import torch.distributed as dist
from torch.utils.data import Sampler

from weft.errors import InputError, UsageError
from weft.worker.sampling import batch_sizes, order_of_epoch, own_indices, share_of


class ElasticSampler(Sampler[list[int]]):
    """A batch sampler of this worker's part of every global batch.

    Args:
        dataset: anything with a length.
        batch_size: of all workers together.
        shuffle: by (seed, epoch).
        seed: for shuffling; the same on every worker.
        rank: by default that of the process group, else torchrun's ``RANK``.
        world_size: by default that of the process group, else torchrun's ``WORLD_SIZE``.
        drop_last: leave out the last batch of an epoch if it is smaller.

    >>> sampler = ElasticSampler(range(10), batch_size=4, shuffle=False, rank=0, world_size=2)
    >>> [indices for indices in sampler]
    [[0, 1], [4, 5], [8]]
    >>> loader = DataLoader(dataset, batch_sampler=sampler)             # doctest: +SKIP
    >>> sampler.load_state_dict(checkpoint["sampler"])                  # doctest: +SKIP
    >>> while sampler.epoch < 10:                                       # doctest: +SKIP
    ...     for x, y in sampler.batches(loader):
    ...         ...
    """

    def __init__(
        self,
        dataset: Sized,
        batch_size: int,
        *,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
        rank: int | None = None,
        world_size: int | None = None,
    ) -> None:
        self.num_samples = len(dataset)
        self.rank = _own_rank() if rank is None else rank
        self.world_size = _own_world_size() if world_size is None else world_size
        if not 0 <= self.rank < self.world_size:
            raise UsageError(f"rank is {self.rank} with {self.world_size} workers: expected 0 <= rank < world_size")
        if batch_size < self.world_size:
            raise UsageError(
                f"batch_size is {batch_size} for {self.world_size} workers: expected the global batch, with at least "
                "one sample per worker"
            )
        if self.num_samples == 0 or (drop_last and self.num_samples < batch_size):
            raise InputError(
                f"the dataset has {self.num_samples} samples, too few for a batch of {batch_size}: check where it was "
                "read from, or use a smaller batch"
            )
        self.batch_size = batch_size
        self.seed = seed
        self.epoch = 0
        self.position = 0
        """Samples of this epoch that are done, over all workers."""
        self.loss_scale = 1.0
        """Multiply the loss of the current batch by this to weight an uneven split; 1 if the split is even."""
        self._shuffle = shuffle
        self._drop_last = drop_last

    def __iter__(self) -> Iterator[list[int]]:
        """This worker's indices, batch by batch, for the rest of the epoch."""
        position = self.position
        order = order_of_epoch(self.num_samples, self.seed, self.epoch, self._shuffle)
        for size in self._sizes():
            yield own_indices(order[position : position + size], share_of(size, self.rank, self.world_size))
            position += size

    def __len__(self) -> int:
        """Batches left in this epoch."""
        return sum(1 for _ in self._sizes())

    def batches(self, loader: Iterable[Any]) -> Iterator[Any]:
        """The rest of the epoch from ``loader``; a batch counts as done as soon as it is yielded.

        Batches that the loader's processes have prepared in advance do not count.
        """
        for size, batch in zip(list(self._sizes()), loader, strict=True):
            self.loss_scale = share_of(size, self.rank, self.world_size).weight * self.world_size
            self.position += size
            yield batch
        self.epoch, self.position = self.epoch + 1, 0

    def state_dict(self) -> dict[str, int]:
        """The same on every worker; put it in the checkpoint."""
        return {"epoch": self.epoch, "position": self.position, "num_samples": self.num_samples, "seed": self.seed}

    def load_state_dict(self, state: dict[str, int]) -> None:
        for name in ("num_samples", "seed"):
            own = getattr(self, name)
            if state[name] != own:
                raise InputError(
                    f"the checkpoint was made with {name} = {state[name]}, this sampler has {own}: samples would be "
                    "lost and repeated; use the same dataset and seed"
                )
        self.epoch, self.position = state["epoch"], state["position"]

    def _sizes(self) -> Iterator[int]:
        return batch_sizes(self.num_samples, self.batch_size, self.position, self._drop_last)


def _own_rank() -> int:
    return dist.get_rank() if dist.is_initialized() else int(os.environ.get("RANK", "0"))


def _own_world_size() -> int:
    return dist.get_world_size() if dist.is_initialized() else int(os.environ.get("WORLD_SIZE", "1"))
