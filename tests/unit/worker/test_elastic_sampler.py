"""The sampler on its own: no sample is lost or repeated when the number of workers changes."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("torch")

from torch.utils.data import DataLoader

import weft
from weft.errors import InputError, UsageError
from weft.worker.elastic_sampler import ElasticSampler


def train(workers: int, state: dict[str, int] | None, num_batches: int, size: int, batch: int) -> tuple[Counter, dict]:
    """The samples each worker used, and the state after them."""
    used: Counter[tuple[int, int]] = Counter()
    states = []
    for rank in range(workers):
        sampler = ElasticSampler(range(size), batch, rank=rank, world_size=workers)
        if state is not None:
            sampler.load_state_dict(state)
        left = num_batches
        while left and sampler.epoch < 2:
            for indices in sampler.batches(iter(sampler)):
                used.update((sampler.epoch, index) for index in indices if sampler.loss_scale)
                left -= 1
                if not left:
                    break
        states.append(sampler.state_dict())
    assert all(other == states[0] for other in states)
    return used, states[0]


@given(
    size=st.integers(7, 60),
    batch=st.integers(6, 20),
    plan=st.lists(st.tuples(st.integers(1, 6), st.integers(1, 5)), max_size=6),
)
@settings(max_examples=60, deadline=None)
def test_a_changed_number_of_workers_loses_no_sample(size: int, batch: int, plan: list[tuple[int, int]]) -> None:
    used: Counter[tuple[int, int]] = Counter()
    state = None
    for workers, num_batches in [*plan, (2, 10_000)]:
        more, state = train(workers, state, num_batches, size, batch)
        used += more
    assert used == Counter({(epoch, index): 1 for epoch in range(2) for index in range(size)})


def test_batches_prepared_in_advance_do_not_count_as_used() -> None:
    data = list(range(40))
    sampler = weft.ElasticSampler(data, 8, rank=1, world_size=2)
    loader = DataLoader(data, batch_sampler=sampler, num_workers=1, prefetch_factor=3)
    batches = sampler.batches(loader)
    next(batches)
    assert sampler.state_dict()["position"] == 8
    batches.close()
    assert len(sampler) == 4


def test_an_uneven_split_is_weighted_to_the_mean_over_all_samples() -> None:
    scales = []
    for rank in range(3):
        sampler = ElasticSampler(range(8), 8, rank=rank, world_size=3, shuffle=False)
        next(sampler.batches(iter(sampler)))
        scales.append(sampler.loss_scale)
    assert scales == [9 / 8, 9 / 8, 6 / 8]


def test_a_different_dataset_or_seed_is_refused_instead_of_losing_samples() -> None:
    state = ElasticSampler(range(8), 4).state_dict()
    with pytest.raises(InputError, match="num_samples = 8, this sampler has 9"):
        ElasticSampler(range(9), 4).load_state_dict(state)
    with pytest.raises(InputError, match="seed = 0, this sampler has 1"):
        ElasticSampler(range(8), 4, seed=1).load_state_dict(state)


def test_bad_sizes_are_refused() -> None:
    with pytest.raises(UsageError, match="batch_size is 2 for 3 workers"):
        ElasticSampler(range(8), 2, rank=0, world_size=3)
    with pytest.raises(UsageError, match="rank is 3 with 3 workers"):
        ElasticSampler(range(8), 4, rank=3, world_size=3)
    with pytest.raises(InputError, match="3 samples, too few for a batch of 4"):
        ElasticSampler(range(3), 4, drop_last=True)
