"""A peer with a broken list of bucket sizes would make weft look better than it is."""

from __future__ import annotations

from itertools import accumulate

from benchmarks.ddp_buckets import MIB, caps_mb, tapered_sizes
from hypothesis import given, settings
from hypothesis import strategies as st

# Of float32 parameters.
sizes = st.lists(st.integers(min_value=1, max_value=2 * MIB).map(lambda num: 4 * num), min_size=1, max_size=40)


def as_ddp_fills(parameter_bytes: list[int], caps: list[float]) -> list[int]:
    """What torch does: close a bucket once it has reached its cap; the last cap counts for the rest."""
    buckets, filled, number = [], 0, 0
    for size in parameter_bytes:
        filled += size
        if filled >= int(caps[min(number, len(caps) - 1)] * MIB):
            buckets.append(filled)
            filled, number = 0, number + 1
    return buckets + [filled] * (filled > 0)


@settings(deadline=None)
@given(sizes, sizes)
def test_ddp_closes_its_buckets_at_the_first_parameter_border_after_each_cut_of_a_plan(
    parameter_bytes: list[int], plan: list[int]
) -> None:
    total = sum(parameter_bytes)
    plan[-1] += max(0, total - sum(plan))
    borders = list(accumulate(parameter_bytes))
    wanted = sorted({next((b for b in borders if b >= cut), total) for cut in accumulate(plan)} | {total})
    got = as_ddp_fills(parameter_bytes, caps_mb(plan, parameter_bytes))
    assert list(accumulate(got)) == wanted


@settings(deadline=None)
@given(st.integers(min_value=1, max_value=200 * MIB), st.integers(min_value=1, max_value=50))
def test_tapered_sizes_cover_the_model_and_end_small(total_bytes: int, body_mb: int) -> None:
    found = tapered_sizes(total_bytes, body_mb * MIB)
    assert sum(found) == total_bytes
    assert min(found) > 0
    assert max(found) <= max(body_mb * MIB, MIB)
