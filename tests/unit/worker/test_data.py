"""What ``run.loader`` gives and refuses."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import IterableDataset, get_worker_info

from weft.errors import InputError, UsageError
from weft.worker.data import SessionLoader
from weft.worker.sampling import LoaderPlace


def loader(dataset: Any, rank: int = 0, workers: int = 1, **options: Any) -> SessionLoader:
    settings: dict[str, Any] = {"batch_size": 4, "per_worker": False, "shuffle": None, "drop_last": False}
    ours = {key: options.pop(key, value) for key, value in settings.items()}
    return SessionLoader(dataset, LoaderPlace(rank, workers, seed=5), **ours, options=options)


class Splitting(IterableDataset[int]):
    """A stream that splits itself among loader processes, as the torch tutorial teaches."""

    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        return iter(range(10) if info is None else range(info.id, 10, info.num_workers))


class Noisy:
    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> tuple[int, float, float]:
        return index, float(torch.rand(())), random.random()


def test_an_empty_dataset_is_refused() -> None:
    with pytest.raises(InputError, match="dataset is empty"):
        loader([])


def test_a_batch_smaller_than_the_number_of_workers_is_refused() -> None:
    with pytest.raises(UsageError, match=r"smaller than the number of workers \(8\)"):
        loader(list(range(100)), workers=8)


@pytest.mark.parametrize("size", [0, -1, 2.5, True])
def test_an_invalid_batch_size_is_refused(size: Any) -> None:
    with pytest.raises(UsageError, match="positive whole number"):
        loader(list(range(100)), batch_size=size)


def test_a_sampler_of_the_users_own_is_refused() -> None:
    with pytest.raises(UsageError, match="does not accept sampler="):
        loader(list(range(100)), sampler=range(3))


def test_drop_last_that_drops_everything_is_refused() -> None:
    with pytest.raises(InputError, match="leaves no batch"):
        loader([1, 2], drop_last=True)


def test_a_stream_cannot_be_shuffled_from_outside() -> None:
    with pytest.raises(UsageError, match="shuffle inside the dataset"):
        loader(Splitting(), shuffle=True)


def test_another_dataset_or_seed_is_refused_before_samples_are_lost() -> None:
    state = loader(list(range(100))).state_dict()
    with pytest.raises(InputError, match="dataset of 100 samples, but this one has 99"):
        loader(list(range(99))).load_state_dict(state)
    with pytest.raises(InputError, match="seed 6"):
        loader(list(range(100))).load_state_dict({**state, "seed": 6})


@pytest.mark.parametrize("processes", [0, 2])
def test_a_stream_that_splits_itself_is_still_read_once(processes: int) -> None:
    seen: Counter[int] = Counter()
    for rank in range(2):
        for share, batch in loader(Splitting(), rank, 2, num_workers=processes).batches(0, 0):
            assert share.num_samples
            seen.update(batch.tolist())
    assert seen == Counter(range(10))


def test_augmentation_in_loader_processes_is_the_same_after_a_restart_in_mid_epoch() -> None:
    whole = [batch for _, batch in loader(Noisy(), num_workers=2).batches(0, 0)]
    rest = [batch for _, batch in loader(Noisy(), num_workers=2).batches(0, 4)]
    assert [[part.tolist() for part in batch] for batch in whole[1:]] == [[p.tolist() for p in b] for b in rest]


def test_loader_processes_that_stay_follow_the_epoch() -> None:
    data = loader(Noisy(), num_workers=1, persistent_workers=True)
    first = [batch[1].tolist() for _, batch in data.batches(0, 0)]
    second = [batch[1].tolist() for _, batch in data.batches(1, 0)]
    assert second == [batch[1].tolist() for _, batch in loader(Noisy(), num_workers=1).batches(1, 0)]
    assert first != second


def test_iterating_leaves_the_scripts_random_numbers_alone() -> None:
    torch.manual_seed(3)
    expected = torch.rand(3)
    torch.manual_seed(3)
    list(loader(list(range(20))).batches(0, 0))
    assert torch.equal(torch.rand(3), expected)


def test_a_batch_per_worker_makes_the_global_batch_grow() -> None:
    assert loader(list(range(100)), workers=3, batch_size=8, per_worker=True).batch_size == 24


@pytest.mark.parametrize(
    ("num_samples", "batch_size", "drop_last", "uneven"),
    [(100, 10, False, False), (100, 9, False, True), (101, 10, False, True), (101, 10, True, False)],
)
def test_uneven_splits_are_predicted(num_samples: int, batch_size: int, drop_last: bool, uneven: bool) -> None:
    data = loader(list(range(num_samples)), workers=2, batch_size=batch_size, drop_last=drop_last)
    assert data.may_be_uneven is uneven


@pytest.mark.parametrize("drop_last", [False, True])
def test_the_last_batch_of_an_epoch_is_known_while_it_is_trained_on(drop_last: bool) -> None:
    data = loader(list(range(10)), drop_last=drop_last)
    seen = []
    for share, _ in data.batches(0, 0):
        seen.append(data.ends_epoch(share))
        data.position += share.num_global
    assert seen == ([False, True] if drop_last else [False, False, True])


def test_validation_counts_each_sample_once_when_a_worker_gets_nothing_of_the_last_batch() -> None:
    """Training pads such a worker with a sample of weight 0, which a plain loop would count."""
    parts = [list(loader(list(range(9)), rank, 4, shuffle=False)) for rank in range(4)]
    assert sorted(int(k) for part in parts for batch in part for k in batch) == list(range(9))
