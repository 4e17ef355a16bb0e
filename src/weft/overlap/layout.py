"""Where each parameter lies in the flat memory, and how that memory is cut into buckets.  Pure.

All parameters of one dtype on one device form a *lane*: one flat buffer in the order in which their
gradients become ready.  A plan is a list of cuts per lane.  Cuts need not fall on parameter borders: a
bucket may hold the end of one parameter and the start of the next, which keeps every worker's shard of
every bucket the same size and lets a huge embedding travel in several buckets.

[Note: alignment]  Parameters start, and shards are cut, at multiples of ALIGN elements from the start of
the parameter.  A vectorised kernel treats the elements of a full vector and those of the rest differently
(fused SGD does, in the last bit), so a shard cut in mid-vector would not be bit-for-bit the full update.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

ALIGN = 16


@dataclass(frozen=True, slots=True)
class Slot:
    """A parameter's place in its lane."""

    parameter: int
    num_elements: int
    offset: int

    @property
    def end(self) -> int:
        return self.offset + self.num_elements


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
    """What travels together: ``[start, stop)`` of a lane, one equal shard per worker."""

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
        offset += -(-num_elements // ALIGN) * ALIGN
    step = granularity(num_workers)
    return Lane(tuple(slots), max(-(-offset // step) * step, step), element_bytes)


def uniform_cuts(lane: Lane, bucket_bytes: int, num_workers: int) -> tuple[int, ...]:
    """Inner cut positions that make buckets of about ``bucket_bytes``."""
    step = granularity(num_workers)
    size = max(step, round(bucket_bytes / lane.element_bytes / step) * step)
    return tuple(range(size, lane.num_elements, size))


def snap(cuts: Sequence[int], lane: Lane, num_workers: int) -> tuple[int, ...]:
    """The nearest allowed cuts: multiples of the granularity, strictly inside the lane, each once."""
    step = granularity(num_workers)
    snapped = {round(cut / step) * step for cut in cuts}
    return tuple(sorted(cut for cut in snapped if 0 < cut < lane.num_elements))


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
            while first < len(lane.slots) and lane.slots[first].end <= start:
                first += 1
            bucket = _bucket(lane, lane_index, start, stop, first, num_workers)
            if bucket.parameters:  # the padding behind the last parameter is nobody's
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
        if low >= high:
            continue
        parameters.append(slot.parameter)
        while low < high:
            owner = (low - start) // shard
            end = min(high, start + (owner + 1) * shard)
            pieces.append(Piece(slot.parameter, low - slot.offset, end - low, owner, low - start - owner * shard))
            low = end
    return BucketPlan(-1, lane_index, start, stop, shard, tuple(parameters), tuple(pieces))


def checksum(description: object) -> int:
    """63 bits that differ when two workers' descriptions differ.

    >>> checksum(("a", 1)) == checksum(("a", 1)), checksum(("a", 1)) == checksum(("a", 2))
    (True, False)
    """
    digest = hashlib.sha256(repr(description).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1
