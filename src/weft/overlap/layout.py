"""Where each parameter lies in the flat memory, and how that memory is cut into buckets.  Pure.

All parameters of one dtype on one device form a *lane*: one flat buffer in the order in which their gradients become
ready.  A plan is a list of cuts per lane.  Cuts need not fall on parameter borders: a bucket may contain the end of one
parameter and the start of the next, so all shards of a bucket have the same size, and a huge embedding can travel in
several buckets.

[Note: alignment]  Parameters start, and shards are cut, at multiples of ALIGN elements from the start of the parameter.
A vectorized kernel treats the elements of full vectors and the remainder differently (fused SGD does, in the last bit),
so updating a shard cut in mid-vector would not match the full update bit for bit.
"""

from __future__ import annotations

import hashlib
import math
from bisect import bisect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

ALIGN = 16
# Message tags have room for this many numbers: the buckets of a few lanes, and above them those that measure the link.
MAX_MESSAGES = 1 << 15
FIRST_PROBE = 1 << 14
MAX_BUCKETS = 1 << 12
# If shards hold whole parameters: acceptable padding, and how many buckets may be joined to reduce it.
_PADDING = 0.05
_MAX_JOINED = 8


@dataclass(frozen=True, slots=True)
class Slot:
    """A parameter's place in its lane."""

    parameter: int
    num_elements: int
    offset: int

    @property
    def end(self) -> int:
        return self.offset + self.num_elements

    @property
    def room(self) -> int:
        """Elements up to the next slot.  Empty parameters get some, too, so that each starts in one bucket."""
        return max(1, -(-self.num_elements // ALIGN)) * ALIGN


@dataclass(frozen=True, slots=True)
class Lane:
    """The flat memory of one kind of parameter, in the order in which gradients become ready."""

    slots: tuple[Slot, ...]
    num_elements: int
    element_bytes: int


@dataclass(frozen=True, slots=True)
class Piece:
    """A run of one parameter's elements inside one worker's shard of one bucket."""

    parameter: int
    start: int
    length: int
    owner: int
    offset: int  # inside the owner's shard


@dataclass(frozen=True, slots=True)
class BucketPlan:
    """``[start, stop)`` of a lane, which travels together, in one equal shard per worker."""

    index: int
    lane: int
    start: int
    stop: int
    shard: int
    parameters: tuple[int, ...]
    pieces: tuple[Piece, ...]

    def owned_by(self, worker: int) -> tuple[Piece, ...]:
        return tuple(piece for piece in self.pieces if piece.owner == worker)


def granularity(num_workers: int) -> int:
    """Cuts are multiples of this many elements, so that shards are equal and aligned."""
    return ALIGN * num_workers


def make_lane(sizes: Sequence[tuple[int, int]], num_workers: int, element_bytes: int) -> Lane:
    """Lay out ``(parameter, num_elements)`` one after the other.

    >>> [slot.offset for slot in make_lane([(1, 10), (0, 20)], num_workers=2, element_bytes=4).slots]
    [0, 16]
    """
    offset = 0
    slots = []
    for parameter, num_elements in sizes:
        slots.append(Slot(parameter, num_elements, offset))
        offset += slots[-1].room
    step = granularity(num_workers)
    return Lane(tuple(slots), max(-(-offset // step) * step, step), element_bytes)


def uniform_cuts(lane: Lane, bucket_bytes: int, num_workers: int) -> tuple[int, ...]:
    """Inner cuts that make buckets of about ``bucket_bytes``, or larger ones if there would be too many.

    One worker sends nothing, so more than one bucket would only cost time.
    """
    if num_workers == 1:
        return ()
    step = granularity(num_workers)
    wanted = max(bucket_bytes / lane.element_bytes, lane.num_elements / MAX_BUCKETS)
    size = max(step, math.ceil(wanted / step) * step)
    return tuple(range(size, lane.num_elements, size))


def snap(cuts: Sequence[int], lane: Lane, num_workers: int) -> tuple[int, ...]:
    """The nearest allowed cuts: multiples of the granularity, strictly inside the lane, each once."""
    step = granularity(num_workers)
    snapped = {round(cut / step) * step for cut in cuts}
    return tuple(sorted(cut for cut in snapped if 0 < cut < lane.num_elements))


def keep_whole(lane: Lane, cuts: Sequence[int], num_workers: int) -> tuple[Lane, tuple[int, ...]]:
    """Rearrange the lane so that every parameter lies in one worker's shard; returns it with its cuts.

    Inside a bucket, the largest parameter goes to the worker with the least so far; all shards are padded to the length
    of the longest.  Buckets of ``cuts`` are joined until there is little padding.

    >>> lane, cuts = keep_whole(make_lane([(0, 64), (1, 32), (2, 32)], 2, 4), cuts=(), num_workers=2)
    >>> [(slot.parameter, slot.offset) for slot in lane.slots], lane.num_elements
    ([(0, 0), (1, 64), (2, 96)], 128)
    """
    totals = [0] * num_workers
    placed: list[Slot] = []
    edges = [0]
    for shards in _balanced_buckets(lane, cuts, num_workers):
        # The worker with the least of the model so far gets the fullest shard, to balance updates and state.
        workers = sorted(range(num_workers), key=lambda worker: totals[worker])
        by_worker = dict(zip(workers, sorted(shards, key=_length, reverse=True), strict=True))
        longest = max(map(_length, shards))
        for worker in range(num_workers):
            offset = edges[-1] + worker * longest
            totals[worker] += _length(by_worker[worker])
            for slot in by_worker[worker]:
                placed.append(replace(slot, offset=offset))
                offset += slot.room
        edges.append(edges[-1] + num_workers * longest)
    return Lane(tuple(placed), edges[-1], lane.element_bytes), tuple(edges[1:-1])


def _balanced_buckets(lane: Lane, cuts: Sequence[int], num_workers: int) -> list[list[list[Slot]]]:
    """For each bucket, the slots of each shard.  A parameter belongs to the bucket that contains its middle."""
    wanted: dict[int, list[Slot]] = {}
    for slot in lane.slots:
        wanted.setdefault(bisect(cuts, slot.offset + slot.room // 2), []).append(slot)
    found: list[list[list[Slot]]] = []
    joined: list[Slot] = []
    num_joined = 0
    for _, slots in sorted(wanted.items()):
        joined += slots
        num_joined += 1
        shards = _shards(joined, num_workers)
        if num_joined == _MAX_JOINED or num_workers * max(map(_length, shards)) <= _length(joined) * (1 + _PADDING):
            found.append(shards)
            joined, num_joined = [], 0
    if joined:
        found.append(_shards(joined, num_workers))
    return found


def _shards(slots: Sequence[Slot], num_workers: int) -> list[list[Slot]]:
    shards: list[list[Slot]] = [[] for _ in range(num_workers)]
    for slot in sorted(slots, key=lambda slot: -slot.room):
        min(shards, key=_length).append(slot)
    return shards


def _length(slots: Sequence[Slot]) -> int:
    return sum(slot.room for slot in slots)


def make_buckets(
    lanes: Sequence[Lane],
    cuts: Sequence[Sequence[int]],
    num_workers: int,
    ready_order: Mapping[int, int],
) -> tuple[BucketPlan, ...]:
    """The buckets of a plan, in the order in which every worker launches them."""
    found: list[tuple[tuple[int, int, int], BucketPlan]] = []
    for lane_index, (lane, lane_cuts) in enumerate(zip(lanes, cuts, strict=True)):
        edges = [0, *lane_cuts, lane.num_elements]
        first = 0
        for start, stop in pairwise(edges):
            while first < len(lane.slots) and lane.slots[first].offset < start >= lane.slots[first].end:
                first += 1
            bucket = _bucket(lane, lane_index, start, stop, first, num_workers)
            if bucket.parameters:  # there may be only padding after the last parameter
                last_ready = max(ready_order[parameter] for parameter in bucket.parameters)
                found.append(((last_ready, lane_index, start), bucket))
    found.sort(key=lambda item: item[0])
    return tuple(
        BucketPlan(index, b.lane, b.start, b.stop, b.shard, b.parameters, b.pieces)
        for index, (_, b) in enumerate(found)
    )


def _bucket(lane: Lane, lane_index: int, start: int, stop: int, first: int, num_workers: int) -> BucketPlan:
    shard = (stop - start) // num_workers
    parameters: list[int] = []
    pieces: list[Piece] = []
    for slot in lane.slots[first:]:
        if slot.offset >= stop:
            break
        low, high = max(slot.offset, start), min(slot.end, stop)
        parameters.append(slot.parameter)
        while True:  # also once for an empty parameter: some worker must keep its step count
            owner = (low - start) // shard
            end = min(high, start + (owner + 1) * shard)
            pieces.append(Piece(slot.parameter, low - slot.offset, end - low, owner, low - start - owner * shard))
            low = end
            if low == high:
                break
    return BucketPlan(-1, lane_index, start, stop, shard, tuple(parameters), tuple(pieces))


def checksum(description: object) -> int:
    """A 63-bit checksum, to compare workers' descriptions.

    >>> checksum(("a", 1)) == checksum(("a", 1)), checksum(("a", 1)) == checksum(("a", 2))
    (True, False)
    """
    digest = hashlib.sha256(repr(description).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1
