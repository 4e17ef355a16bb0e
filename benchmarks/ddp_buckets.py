"""Bucket sizes for DDP's ``bucket_cap_mb_list``, which exists since torch 2.13.  Pure.

DDP fills a bucket with gradients in the order in which they become ready and closes it once it has reached the next cap
of the list; the last cap counts for all that follow.  A parameter is never cut, so a plan is followed at the nearest
parameter border.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

MIB = 1 << 20
FIRST_BYTES = MIB
SMALLEST_BYTES = MIB // 2
# The first bucket is smaller, so that sending starts early.
DEFAULT_CAPS_MB = (1.0, 25.0)


def tapered_sizes(total_bytes: int, body_bytes: int) -> list[int]:
    """Small first, so that sending starts early; small last, since nothing hides the last all-reduce.

    >>> [size / MIB for size in tapered_sizes(20 * MIB, 4 * MIB)]
    [1.0, 4.0, 4.0, 4.0, 3.5, 2.0, 1.0, 0.5]
    """
    tail: list[int] = []
    size = body_bytes // 2
    while size >= SMALLEST_BYTES and sum(tail) + size + FIRST_BYTES < total_bytes // 2:
        tail.append(size)
        size //= 2
    sizes = [min(FIRST_BYTES, total_bytes)]
    while (left := total_bytes - sum(sizes) - sum(tail)) > 0:
        sizes.append(min(body_bytes, left))
    return sizes + tail


def caps_mb(bucket_bytes: Sequence[int], parameter_bytes: Sequence[int]) -> list[float]:
    """Caps that make DDP's buckets end where those of a plan do, or at the next parameter border.

    ``parameter_bytes`` is in the order in which gradients become ready.  A cap lies in the middle of the last parameter
    of its bucket, so that a slightly different order closes the bucket at the same place.

    >>> caps_mb([4 * MIB, 4 * MIB, 4 * MIB], [3 * MIB, 3 * MIB, 3 * MIB, 3 * MIB])
    [4.5, 1.5, 1.5]
    """
    caps: list[float] = []
    ends = list(accumulate(bucket_bytes))
    done_bytes, filled_bytes = 0, 0
    for size in parameter_bytes:
        filled_bytes += size
        while ends and done_bytes + filled_bytes >= ends[0]:
            ends.pop(0)
            if filled_bytes:
                caps.append((filled_bytes - size / 2) / MIB)
                done_bytes, filled_bytes = done_bytes + filled_bytes, 0
    if filled_bytes:
        caps.append(filled_bytes / MIB)
    return caps
