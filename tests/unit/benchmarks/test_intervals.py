"""An interval that is too narrow would present noise as a gain."""

from __future__ import annotations

import math
import random

import pytest
from benchmarks.intervals import NO_INTERVAL, interval_note, paired_ratio, ratio_range
from hypothesis import given, settings
from hypothesis import strategies as st

times = st.floats(min_value=0.01, max_value=100)


@settings(deadline=None)
@given(st.lists(st.tuples(times, times), min_size=2, max_size=12))
def test_the_ratio_lies_in_its_interval_and_the_other_way_round_is_its_inverse(
    rounds: list[tuple[float, float]],
) -> None:
    slower, faster = zip(*rounds, strict=True)
    ratio, inverse = paired_ratio(slower, faster), paired_ratio(faster, slower)
    assert ratio.low <= ratio.value <= ratio.high
    assert inverse.value == pytest.approx(1 / ratio.value)
    assert inverse.high == pytest.approx(1 / ratio.low)


@settings(deadline=None)
@given(st.lists(st.tuples(times, times), min_size=2, max_size=8), st.lists(times, min_size=8, max_size=8))
def test_a_machine_that_is_slow_in_one_round_for_both_changes_nothing(
    rounds: list[tuple[float, float]], slowness: list[float]
) -> None:
    slower, faster = zip(*rounds, strict=True)
    factors = slowness[: len(rounds)]
    shaken = paired_ratio(
        [t * f for t, f in zip(slower, factors, strict=True)], [t * f for t, f in zip(faster, factors, strict=True)]
    )
    assert shaken.value == pytest.approx(paired_ratio(slower, faster).value)
    assert shaken.high == pytest.approx(paired_ratio(slower, faster).high, rel=1e-6)


def test_one_round_says_nothing_about_the_spread() -> None:
    ratio = paired_ratio([3.0], [2.0])
    assert math.isinf(ratio.high)
    assert str(ratio) == "1.50x"


def test_a_table_says_why_a_ratio_has_no_interval() -> None:
    one, two = paired_ratio([3.0], [2.0]), paired_ratio([3.0, 3.0], [2.0, 2.0])
    assert interval_note([one, two, None]) == ["", NO_INTERVAL]
    assert interval_note([two, None]) == []


def test_a_range_over_rows_keeps_the_interval_of_both_ends() -> None:
    low, high = paired_ratio([1.1, 1.2], [1.0, 1.0]), paired_ratio([3.0, 3.0], [2.0, 2.0])
    assert ratio_range([high, low]) == f"{low} to {high}"
    assert ratio_range([high]) == "1.50x (1.50-1.50)"
    assert ratio_range([]) == "-"


def test_zero_rounds_is_an_error() -> None:
    with pytest.raises(ValueError, match="at least one round"):
        paired_ratio([], [])


def test_the_interval_holds_the_truth_in_about_95_of_100_cases() -> None:
    draw, truth, held = random.Random(3), 1.2, 0
    for _ in range(1000):
        faster = [draw.lognormvariate(0.0, 0.1) for _ in range(5)]
        slower = [truth * draw.lognormvariate(0.0, 0.1) for _ in range(5)]
        ratio = paired_ratio(slower, faster)
        held += ratio.low <= truth <= ratio.high
    assert 930 <= held <= 970
