"""Iterable datasets: every worker reads the whole stream and keeps its part of each global batch.

Reading the other workers' samples costs time, but only this way does any number of workers see each sample once, in the
same batches, and agree on where the stream ends.  A stream that is expensive to read should be a map-style dataset.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

import torch
from torch.utils.data import IterableDataset, get_worker_info
from torch.utils.data._utils import worker as loader_worker

from weft.worker.rng import derived_seed, seed_everything
from weft.worker.sampling import LoaderPlace, share_of

# Samples in the global batch, and this worker's collated part.
StreamBatch = tuple[int, Any]


def shared_numbers(count: int) -> torch.Tensor:
    """Zeros in memory shared with loader processes."""
    zeros: Any = torch.zeros(count, dtype=torch.int64)
    shared: torch.Tensor = zeros.share_memory_()
    return shared


class BatchStream(IterableDataset[StreamBatch]):
    """With n loader processes, each makes every n-th batch; the DataLoader takes them in turn, so the order stays."""

    def __init__(
        self,
        dataset: Iterable[Any],
        batch_size: int,
        drop_last: bool,
        place: LoaderPlace,
        collate: Callable[[list[Any]], Any],
    ) -> None:
        self._dataset = dataset
        self._batch_size = batch_size
        self._drop_last = drop_last
        self._place = place
        self._collate = collate
        # Epoch and position; shared, because loader processes may outlive an epoch.
        self._start = shared_numbers(2)

    def go_to(self, epoch: int, position: int) -> None:
        self._start[0], self._start[1] = epoch, position

    def __iter__(self) -> Iterator[StreamBatch]:
        epoch, position = (int(k) for k in self._start.tolist())
        info = get_worker_info()
        turn, num_turns = (0, 1) if info is None else (info.id, info.num_workers)
        if info is not None:
            # Hidden from the dataset: one that splits itself among loader processes would lose samples here.
            loader_worker._worker_info = None
            seed_everything(derived_seed(self._place.seed, epoch, position))
        set_epoch = getattr(self._dataset, "set_epoch", None)
        if callable(set_epoch):
            set_epoch(epoch)
        samples = islice(iter(self._dataset), position, None)
        number = 0
        while batch := list(islice(samples, self._batch_size)):
            if len(batch) < self._batch_size and self._drop_last:
                return
            if number % num_turns == turn:
                share = share_of(len(batch), self._place.rank, self._place.world_size)
                yield len(batch), self._collate(batch[share.start : share.stop] or batch[:1])
            number += 1
