"""The T* rule promises no speed that no schedule could reach."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.core.speed import StepTime
from weft.perf.crossover import PairSpeed, filler_speed, round_s, turns_speed


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
    times = (np.array([time_s]) for time_s in (first.step_s, first.exposed_s, second.step_s, second.exposed_s))
    assert round_s(*times, k=np.array([1.0]), handover_s=0.01)[0] == pytest.approx(expected)


@pytest.mark.parametrize("speed_of", [turns_speed, filler_speed])
@given(first=steps(), second=steps(), handover_s=st.sampled_from([0.0, 0.005]))
def test_a_device_and_a_link_are_never_used_for_more_than_all_of_the_time(
    speed_of: Callable[[StepTime, StepTime, float], PairSpeed],
    first: StepTime,
    second: StepTime,
    handover_s: float,
) -> None:
    speed = speed_of(first, second, handover_s)
    a, b = speed.first_steps_per_s, speed.second_steps_per_s
    assert a * first.compute_s + b * second.compute_s <= 1 + 1e-9
    assert a * first.exposed_s + b * second.exposed_s <= 1 + 1e-9
    assert a * first.step_s <= 1 + 1e-9
    assert b * second.step_s <= 1 + 1e-9
    assert speed.gain == pytest.approx(a * first.step_s + b * second.step_s)


@given(first=steps(), second=steps())
def test_taking_turns_is_symmetric(first: StepTime, second: StepTime) -> None:
    one, other = turns_speed(first, second), turns_speed(second, first)
    assert one.gain == pytest.approx(other.gain)
    if first.step_s != second.step_s:
        assert one.first_steps_per_s == pytest.approx(other.second_steps_per_s)


@given(primary=steps(), filler=steps())
def test_a_filler_costs_the_primary_nothing_and_needs_a_real_gap(primary: StepTime, filler: StepTime) -> None:
    speed = filler_speed(primary, filler, handover_s=0.001)
    assert speed.first_steps_per_s == 1 / primary.step_s
    if primary.exposed_s < 0.003:
        assert speed.second_steps_per_s == 0
