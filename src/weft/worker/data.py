"""``run.loader(...)``: the same global batches in the same order on any number of workers, from any position."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler, default_collate, get_worker_info

from weft.errors import InputError, UsageError
from weft.process.turns import TURNS
from weft.worker.rng import derived_seed, seed_everything
from weft.worker.sampling import LoaderPlace, Share, batch_sizes, order_of_epoch, own_indices, share_of
from weft.worker.stream import BatchStream, shared_numbers

# These choose the samples, which is the session's job.
_NOT_PASSED_THROUGH = ("sampler", "batch_sampler", "generator")
# After a wait this long for loader processes, the next one is offered to the other job.
_LONG_WAIT_S = 0.005


class SessionLoader:
    """This worker's batches.  ``position`` counts the samples of ``epoch`` that are done.

    Made by ``run.loader`` and iterated by ``run.steps``.  Iterating it directly, to validate, yields this worker's part
    of one epoch and moves no position.
    """

    def __init__(
        self,
        dataset: Any,
        place: LoaderPlace,
        *,
        batch_size: int,
        per_worker: bool,
        shuffle: bool | None,
        drop_last: bool,
        options: dict[str, Any],
    ) -> None:
        _check(dataset, place, batch_size, per_worker, options)
        self.dataset = dataset
        self.batch_size = batch_size * place.world_size if per_worker else batch_size
        self.batch_size_per_worker = batch_size if per_worker else None
        self.script_batch_size: int | None = None
        """With a ``batch_rule=``: the batch size in the script, whatever this attempt's is."""
        self.drop_last = drop_last
        self.epoch = 0
        self.position = 0
        self._place = place
        options = dict(options)
        self._has_processes = options.get("num_workers", 0) > 0
        options["worker_init_fn"] = partial(_start_worker, options.get("worker_init_fn"))
        # Otherwise the DataLoader would draw from the script's generator, one extra time after every restart.
        options["generator"] = self._generator = torch.Generator()
        self._source: _MapSource | _StreamSource
        if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__getitem__"):
            if shuffle:
                raise UsageError(
                    "shuffle=True needs a dataset with __len__ and __getitem__, but this one is iterable: shuffle "
                    "inside the dataset (by the epoch passed to its set_epoch) and remove shuffle"
                )
            self.num_samples: int | None = None
            self._source = _StreamSource(dataset, place, self.batch_size, drop_last, options)
        else:
            self.num_samples = len(dataset)
            if self.num_samples == 0:
                raise InputError("the dataset is empty: there is nothing to train on; check where it was read from")
            if drop_last and self.num_samples < self.batch_size:
                raise InputError(
                    f"drop_last=True with {self.num_samples} samples and a global batch of {self.batch_size} leaves no "
                    "batch at all: make the batch smaller or remove drop_last"
                )
            self._source = _MapSource(
                dataset, place, self.batch_size, True if shuffle is None else shuffle, drop_last, options
            )

    def __len__(self) -> int:
        """Steps in a whole epoch."""
        if self.num_samples is None:
            raise TypeError("an iterable dataset has no length")
        return sum(1 for _ in batch_sizes(self.num_samples, self.batch_size, 0, self.drop_last))

    def num_steps_left(self, epochs: int) -> int | None:
        """Steps until ``epochs`` epochs are done, at this batch size; None for an iterable dataset."""
        if self.num_samples is None:
            return None
        sizes = batch_sizes(self.num_samples, self.batch_size, self.position, self.drop_last)
        return max(epochs - self.epoch - 1, 0) * len(self) + (sum(1 for _ in sizes) if self.epoch < epochs else 0)

    def __iter__(self) -> Iterator[Any]:
        # A training step needs all workers, so one without samples gets another's; here that sample would count twice.
        return (batch for share, batch in self.batches(self.epoch, 0) if share.num_samples)

    @property
    def may_be_uneven(self) -> bool:
        """Whether some step's samples do not divide evenly among the workers."""
        workers = self._place.world_size
        if workers == 1:
            return False
        if self.batch_size % workers:
            return True
        return not self.drop_last and (self.num_samples is None or self.num_samples % self.batch_size % workers != 0)

    def ends_epoch(self, share: Share) -> bool | None:
        """Whether the batch at the current position is the last of its epoch; None for an iterable dataset."""
        if self.num_samples is None:
            return None
        left = self.num_samples - self.position - share.num_global
        return left <= 0 or (self.drop_last and left < self.batch_size)

    def batches(self, epoch: int, position: int) -> Iterator[tuple[Share, Any]]:
        """The rest of an epoch: this worker's share and batch, step by step."""
        self._generator.manual_seed(derived_seed(self._place.seed, epoch, self._place.rank))
        batches = self._source.batches(epoch, position)
        return _yielding(batches) if self._has_processes else batches

    def state_dict(self) -> dict[str, Any]:
        return {
            "epoch": self.epoch,
            "position": self.position,
            "num_samples": self.num_samples,
            "seed": self._place.seed,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state["num_samples"] != self.num_samples:
            raise InputError(
                f"the checkpoint was made with a dataset of {state['num_samples']} samples, but this one has "
                f"{self.num_samples}, so its position is meaningless here: use the same dataset, or start over in an "
                "empty checkpoint folder"
            )
        if state["seed"] != self._place.seed:
            raise InputError(
                f"the checkpoint was made with seed {state['seed']}, but this session has seed {self._place.seed}: "
                "samples would be lost and repeated in this epoch; give weft.session the same seed"
            )
        self.epoch = int(state["epoch"])
        self.position = int(state["position"])


def _yielding(batches: Iterator[tuple[Share, Any]]) -> Iterator[tuple[Share, Any]]:
    """Yield the device while waiting for data, if the wait is likely to be long enough for a handover."""
    waited_s = 0.0
    while True:
        began_s = time.perf_counter()
        if waited_s < _LONG_WAIT_S:
            batch = next(batches, None)
        else:
            with TURNS.yielded(later=True):
                batch = next(batches, None)
        waited_s = time.perf_counter() - began_s
        if batch is None:
            return
        yield batch


class _MapSource:
    def __init__(
        self, dataset: Any, place: LoaderPlace, batch_size: int, shuffle: bool, drop_last: bool, options: dict[str, Any]
    ) -> None:
        self._place = place
        self._batch_size = batch_size
        self._shuffle = shuffle
        self._drop_last = drop_last
        self._num_samples = len(dataset)
        self._epoch = shared_numbers(1)
        self.todo: list[list[int]] = []
        reseeding = _Reseeding(dataset, place.seed, self._epoch)
        self._loader: DataLoader[Any] = DataLoader(reseeding, batch_sampler=_Given(self), **options)

    def batches(self, epoch: int, position: int) -> Iterator[tuple[Share, Any]]:
        self._epoch[0] = epoch
        order = order_of_epoch(self._num_samples, self._place.seed, epoch, self._shuffle)
        shares = []
        self.todo = []
        for size in batch_sizes(self._num_samples, self._batch_size, position, self._drop_last):
            share = share_of(size, self._place.rank, self._place.world_size)
            shares.append(share)
            self.todo.append(own_indices(order[position : position + size], share))
            position += size
        yield from zip(shares, self._loader, strict=True)


class _StreamSource:
    def __init__(
        self, dataset: Iterable[Any], place: LoaderPlace, batch_size: int, drop_last: bool, options: dict[str, Any]
    ) -> None:
        self._place = place
        collate = options.pop("collate_fn", None) or default_collate
        self._stream = BatchStream(dataset, batch_size, drop_last, place, collate)
        self._loader: DataLoader[Any] = DataLoader(self._stream, batch_size=None, **options)

    def batches(self, epoch: int, position: int) -> Iterator[tuple[Share, Any]]:
        self._stream.go_to(epoch, position)
        for num_global, batch in self._loader:
            yield share_of(num_global, self._place.rank, self._place.world_size), batch


class _Given(Sampler[list[int]]):
    """Gives the DataLoader the batches that its source has prepared."""

    def __init__(self, source: _MapSource) -> None:
        self._source = source

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self._source.todo)

    def __len__(self) -> int:
        return len(self._source.todo)


class _Reseeding(Dataset[Any]):
    """The user's dataset; in loader processes, random numbers depend only on the batch.

    Otherwise augmentations would differ after a restart in mid-epoch, which begins with fresh loader processes.
    """

    def __init__(self, dataset: Any, seed: int, epoch: torch.Tensor) -> None:
        self._dataset = dataset
        self._seed = seed
        self._epoch = epoch

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: int) -> Any:
        return self._dataset[index]

    def __getitems__(self, indices: list[int]) -> list[Any]:
        if get_worker_info() is not None:
            seed_everything(derived_seed(self._seed, int(self._epoch[0].item()), indices[0]))
        fetch_all = getattr(self._dataset, "__getitems__", None)
        if callable(fetch_all):
            found: list[Any] = fetch_all(indices)
            return found
        return [self._dataset[index] for index in indices]


def _start_worker(users: Callable[[int], None] | None, number: int) -> None:
    """Runs first in each loader process."""
    # Ctrl-C reaches loader processes too, but they are needed until the current step is done.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if users is not None:
        users(number)


def _check(dataset: Any, place: LoaderPlace, batch_size: int, per_worker: bool, options: dict[str, Any]) -> None:
    name = "batch_size_per_worker" if per_worker else "batch_size"
    if not isinstance(batch_size, int) or isinstance(batch_size, bool) or batch_size < 1:
        raise UsageError(f"{name} is {batch_size!r}, expected a positive whole number of samples")
    if not per_worker and batch_size < place.world_size:
        raise UsageError(
            f"batch_size={batch_size} is the global batch and smaller than the number of workers ({place.world_size}): "
            "each needs at least one sample; use a larger batch or fewer workers"
        )
    for option in _NOT_PASSED_THROUGH:
        if option in options:
            raise UsageError(
                f"run.loader decides which sample goes to which worker and does not accept {option}=: order the "
                "dataset itself and pass shuffle=False"
            )
    if not hasattr(dataset, "__getitem__") and not hasattr(dataset, "__iter__"):
        raise UsageError(
            f"run.loader was given a {type(dataset).__name__}, expected a dataset with __len__ and __getitem__, or an "
            "iterable one"
        )
