"""Each sample once per epoch, in batches that do not depend on the number of workers."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from weft.worker.sampling import batch_sizes, order_of_epoch, own_indices, share_of


@given(st.integers(1, 200), st.integers(1, 40), st.integers(1, 9), st.booleans(), st.integers(0, 3))
def test_workers_together_see_every_sample_once(
    num_samples: int, batch_size: int, workers: int, shuffle: bool, epoch: int
) -> None:
    order = order_of_epoch(num_samples, seed=7, epoch=epoch, shuffle=shuffle)
    seen: Counter[int] = Counter()
    position = 0
    for size in batch_sizes(num_samples, batch_size, 0, drop_last=False):
        for rank in range(workers):
            share = share_of(size, rank, workers)
            if share.num_samples:
                seen.update(own_indices(order[position : position + size], share))
        position += size
    assert seen == Counter(range(num_samples))


@given(st.integers(1, 500), st.integers(1, 64))
def test_shares_weigh_one_together_and_differ_by_one_sample_at_most(num_samples: int, workers: int) -> None:
    shares = [share_of(num_samples, rank, workers) for rank in range(workers)]
    assert sum(share.num_samples for share in shares) == num_samples
    assert max(s.num_samples for s in shares) - min(s.num_samples for s in shares) <= 1
    assert abs(sum(share.weight for share in shares) - 1.0) < 1e-12


@given(st.integers(1, 200), st.integers(1, 40), st.data())
def test_resuming_in_mid_epoch_gives_the_remaining_batches(num_samples: int, batch: int, data: st.DataObject) -> None:
    whole = list(batch_sizes(num_samples, batch, 0, drop_last=False))
    done = data.draw(st.integers(0, len(whole)))
    assert list(batch_sizes(num_samples, batch, sum(whole[:done]), drop_last=False)) == whole[done:]


def test_an_epoch_has_its_own_order_and_the_seed_decides_it() -> None:
    first = order_of_epoch(50, seed=1, epoch=0, shuffle=True).tolist()
    assert first == order_of_epoch(50, seed=1, epoch=0, shuffle=True).tolist()
    assert first != order_of_epoch(50, seed=1, epoch=1, shuffle=True).tolist()
    assert first != order_of_epoch(50, seed=2, epoch=0, shuffle=True).tolist()


def test_a_worker_without_a_sample_computes_one_that_counts_for_nothing() -> None:
    share = share_of(2, rank=3, world_size=4)
    assert share.weight == 0.0
    assert own_indices(order_of_epoch(10, 0, 0, shuffle=False)[4:6], share) == [4]


def test_drop_last_leaves_out_the_small_batch() -> None:
    assert list(batch_sizes(10, 4, 0, drop_last=True)) == [4, 4]
