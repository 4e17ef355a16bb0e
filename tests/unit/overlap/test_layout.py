"""Where parameters are placed and how they are cut: an element lost or doubled here is a wrong gradient."""

from __future__ import annotations

from itertools import pairwise

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from weft.overlap.flat import FlatMemory
from weft.overlap.layout import (
    ALIGN,
    BucketPlan,
    Lane,
    checksum,
    granularity,
    keep_whole,
    make_buckets,
    make_lane,
    snap,
    uniform_cuts,
)

sizes = st.lists(st.integers(0, 200), min_size=1, max_size=12)
workers = st.integers(1, 5)
cut_wishes = st.lists(st.integers(-50, 3000), max_size=12)


def lane_of(counts: list[int], num_workers: int) -> Lane:
    return make_lane(list(enumerate(counts)), num_workers, element_bytes=4)


def planned(counts: list[int], wishes: list[int], num_workers: int) -> tuple[Lane, tuple[BucketPlan, ...]]:
    lane = lane_of(counts, num_workers)
    ready = {number: number for number in range(len(counts))}
    return lane, make_buckets([lane], [snap(wishes, lane, num_workers)], num_workers, ready)


@settings(deadline=None)
@given(sizes, cut_wishes, workers)
def test_every_element_is_in_exactly_one_shard(counts: list[int], wishes: list[int], num_workers: int) -> None:
    _, buckets = planned(counts, wishes, num_workers)
    owned = [[0] * count for count in counts]
    for bucket in buckets:
        for worker in range(num_workers):
            for piece in bucket.owned_by(worker):
                for element in range(piece.start, piece.start + piece.length):
                    owned[piece.parameter][element] += 1
    assert owned == [[1] * count for count in counts]


@settings(deadline=None)
@given(sizes, cut_wishes, workers)
def test_shards_are_equal_and_start_at_whole_vectors(counts: list[int], wishes: list[int], num_workers: int) -> None:
    lane, buckets = planned(counts, wishes, num_workers)
    for bucket in buckets:
        assert bucket.stop - bucket.start == bucket.shard * num_workers
        assert bucket.shard % ALIGN == 0
        for piece in bucket.pieces:
            assert piece.start % ALIGN == 0
            assert piece.offset % ALIGN == 0
            assert 0 <= piece.offset <= piece.offset + piece.length <= bucket.shard
            assert piece.length > 0 or counts[piece.parameter] == 0
            place = bucket.start + piece.owner * bucket.shard + piece.offset
            assert place == lane.slots[piece.parameter].offset + piece.start


@settings(deadline=None)
@given(sizes, cut_wishes, workers)
def test_buckets_do_not_overlap_and_name_what_they_hold(counts: list[int], wishes: list[int], num_workers: int) -> None:
    lane, buckets = planned(counts, wishes, num_workers)
    spans = sorted((bucket.start, bucket.stop) for bucket in buckets)
    assert all(one[1] <= other[0] for one, other in pairwise(spans))
    assert [bucket.index for bucket in buckets] == list(range(len(buckets)))
    assert {parameter for bucket in buckets for parameter in bucket.parameters} == set(range(len(counts)))
    for bucket in buckets:
        assert set(bucket.parameters) == {piece.parameter for piece in bucket.pieces} != set()
        assert bucket.stop <= lane.num_elements


@settings(deadline=None)
@given(st.lists(st.integers(1, 200), min_size=2, max_size=10), cut_wishes, workers, st.randoms())
def test_buckets_are_launched_in_the_order_in_which_they_are_complete(
    counts: list[int], wishes: list[int], num_workers: int, random: object
) -> None:
    lane = lane_of(counts, num_workers)
    order = list(range(len(counts)))
    random.shuffle(order)  # type: ignore[attr-defined]
    ready = {number: k for k, number in enumerate(order)}
    buckets = make_buckets([lane], [snap(wishes, lane, num_workers)], num_workers, ready)
    last = [max(ready[parameter] for parameter in bucket.parameters) for bucket in buckets]
    assert last == sorted(last)


@settings(deadline=None)
@given(sizes, st.integers(1, 10**6), workers)
def test_uniform_cuts_are_allowed_cuts(counts: list[int], bucket_bytes: int, num_workers: int) -> None:
    lane = lane_of(counts, num_workers)
    cuts = uniform_cuts(lane, bucket_bytes, num_workers)
    assert snap(cuts, lane, num_workers) == cuts
    assert all(cut % granularity(num_workers) == 0 for cut in cuts)


@settings(deadline=None)
@given(sizes, cut_wishes, workers)
def test_whole_parameters_lie_in_one_shard_each_and_apart(
    counts: list[int], wishes: list[int], num_workers: int
) -> None:
    plain = lane_of(counts, num_workers)
    lane, cuts = keep_whole(plain, snap(wishes, plain, num_workers), num_workers)
    buckets = make_buckets([lane], [cuts], num_workers, {number: number for number in range(len(counts))})
    pieces = sorted((p.parameter, p.start, p.length) for bucket in buckets for p in bucket.pieces)
    assert pieces == [(number, 0, count) for number, count in enumerate(counts)]
    assert all(first.offset + first.room <= second.offset for first, second in pairwise(lane.slots))
    assert all(bucket.shard % ALIGN == 0 for bucket in buckets)


def test_a_bucket_size_of_one_byte_does_not_make_more_buckets_than_messages_can_name() -> None:
    lane = make_lane([(0, 50_000_000)], num_workers=2, element_bytes=4)
    assert len(uniform_cuts(lane, bucket_bytes=1, num_workers=2)) < 1 << 13


def test_cuts_stay_with_their_dtype_when_the_order_of_gradients_changes() -> None:
    parameters = [nn.Parameter(torch.zeros(40)), nn.Parameter(torch.zeros(9, dtype=torch.float64))]
    one, other = FlatMemory(parameters, [0, 1], 2), FlatMemory(parameters, [1, 0], 2)
    assert [buffer.dtype for buffer in one.buffers] == [buffer.dtype for buffer in other.buffers]


def test_parameters_keep_values_shapes_and_strides_in_flat_memory_and_out_of_it() -> None:
    values = [torch.randn(3, 5), torch.randn(5, 4).t(), torch.randn(()), torch.randn(2, 3, 4, 4), torch.zeros(0)]
    values[3] = values[3].contiguous(memory_format=torch.channels_last)
    values.append(torch.randn(8)[::2])  # not dense: laid out anew
    parameters = [nn.Parameter(value.clone(memory_format=torch.preserve_format)) for value in values]
    parameters[5].data = values[5]
    memory = FlatMemory(parameters, range(len(values))[::-1], num_workers=3)
    buffer = memory.buffers[0]
    low, high = buffer.data_ptr(), buffer.data_ptr() + buffer.numel() * 4
    for parameter, value in zip(parameters, values, strict=True):
        assert torch.equal(parameter, value)
        assert not value.numel() or low <= parameter.data_ptr() < high
    assert parameters[1].stride() == values[1].stride()
    assert parameters[3].is_contiguous(memory_format=torch.channels_last)
    memory.release()
    for parameter, value in zip(parameters, values, strict=True):
        assert torch.equal(parameter, value)
        assert not low <= parameter.data_ptr() < high


def test_checksums_tell_orders_apart() -> None:
    assert checksum(["a", "b"]) != checksum(["b", "a"])
    assert 0 <= checksum(["a"]) < 1 << 63
