"""The T* rule promises no speed that a schedule could not give."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.core.speed import StepTime
from weft.perf.crossover import pair_speed, pair_speeds, round_s


@st.composite
def steps(draw: st.DrawFn) -> StepTime:
    step_s = draw(st.floats(0.01, 10.0))
    return StepTime(step_s, step_s * draw(st.floats(0.0, 1.0)))


@given(first=steps(), second=steps())
def test_one_step_each_follows_the_design(first: StepTime, second: StepTime) -> None:
    expected = max(
        first.compute_s + second.compute_s + 0.02,
        first.step_s,
        second.step_s,
        first.exposed_s + second.exposed_s,
    )
    assert round_s(first, second, handover_s=0.01) == pytest.approx(expected)


@given(first=steps(), second=steps())
def test_a_device_and_a_link_are_never_used_for_more_than_all_of_the_time(
    first: StepTime, second: StepTime
) -> None:
    speed = pair_speed(first, second)
    a, b = speed.first_steps_per_s, speed.second_steps_per_s
    assert a * first.compute_s + b * second.compute_s <= 1 + 1e-9
    assert a * first.exposed_s + b * second.exposed_s <= 1 + 1e-9
    assert a * first.step_s <= 1 + 1e-9
    assert b * second.step_s <= 1 + 1e-9
    assert speed.gain == pytest.approx(a * first.step_s + b * second.step_s)


@given(first=steps(), second=steps())
def test_it_does_not_matter_who_is_named_first(first: StepTime, second: StepTime) -> None:
    one, other = pair_speed(first, second), pair_speed(second, first)
    assert one.gain == pytest.approx(other.gain)
    if first.step_s != second.step_s:
        assert one.first_steps_per_s == pytest.approx(other.second_steps_per_s)


@given(first=steps(), second=steps())
def test_arrays_and_single_pairs_agree(first: StepTime, second: StepTime) -> None:
    """The policy predicts with the arrays, the replay runs by the single pair."""
    single = pair_speed(first, second, 0.001)
    a, b, gain = pair_speeds(
        np.array([first.step_s]),
        np.array([first.exposed_s]),
        np.array([second.step_s]),
        np.array([second.exposed_s]),
        0.001,
    )
    assert gain[0] == pytest.approx(single.gain, rel=1e-6)
    assert a[0] * first.step_s + b[0] * second.step_s == pytest.approx(gain[0])
