"""Predicted times, which users plan their clusters with."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.errors import UsageError
from weft.perf.convergence import fit_loss
from weft.perf.fitting import SpeedSample, fit_speed
from weft.perf.restart import RestartCost


@given(
    a=st.floats(0.1, 10),
    b=st.floats(0, 0.01),
    c=st.floats(0, 1),
    d=st.floats(0, 1),
    left=st.sampled_from([2, 4, 8]),
)
def test_a_curve_of_the_models_own_form_is_found_again(a: float, b: float, c: float, d: float, left: int) -> None:
    def true(w: int) -> float:
        return a / w + b * (w - 1) + c * (w - 1) / w + d

    samples = [SpeedSample((w,), true(w)) for w in (1, 2, 3, 4, 6, 8, 12, 16) if w != left]
    assert fit_speed(samples).predict_s((left,)) == pytest.approx(true(left), rel=0.02)


def test_measured_sizes_count_as_measured_and_far_ones_are_refused() -> None:
    model = fit_speed([SpeedSample((1,), 1.0), SpeedSample((2,), 0.7, 0.1), SpeedSample((2,), 0.5, 0.1)])
    assert model.predict_s((2,)) == pytest.approx(0.6)
    assert 0.0 < model.exposed_s((4,), model.predict_s((4,))) < model.predict_s((4,)) < 0.6
    with pytest.raises(UsageError, match="measure a size of at least 3"):
        model.predict_s((5,))


def test_a_step_across_nodes_is_distinguished_from_one_within_a_node() -> None:
    samples = [SpeedSample((w,), 1 / w) for w in (1, 2, 4)] + [SpeedSample((w, w), 0.5 / w + 0.5) for w in (1, 2, 4)]
    model = fit_speed(samples)
    assert model.predict_s((1, 1)) == pytest.approx(1.0)
    assert model.predict_s((2,)) == pytest.approx(0.5)


@pytest.mark.parametrize("step_s", [0.0, -1.0, math.nan, math.inf])
def test_impossible_measurements_are_refused(step_s: float) -> None:
    with pytest.raises(UsageError, match="expected a positive time"):
        SpeedSample((1,), step_s)


def test_remaining_steps_are_read_off_the_loss() -> None:
    steps = list(range(0, 2000, 50))
    curve = fit_loss(steps, [1 / (0.01 * k + 0.4) + 0.3 for k in steps])
    assert (curve.rate, curve.floor) == (pytest.approx(0.01, rel=0.02), pytest.approx(0.3, rel=0.02))
    standstill = curve.steps_to_standstill(steps_per_epoch=100)
    assert 0 < standstill < math.inf
    assert curve.loss(standstill) - curve.loss(standstill + 100) < 0.01 * curve.loss(standstill)


def test_a_loss_that_does_not_fall_has_nothing_left_to_gain() -> None:
    assert fit_loss([0, 1, 2, 3], [1.0, 1.0, 1.0, 1.0]).steps_to_standstill(steps_per_epoch=1) == 0.0


def test_restart_cost_moves_from_the_assumed_to_the_observed() -> None:
    cost = RestartCost(prior_s=30.0)
    for _ in range(50):
        cost = cost.observed(5.0)
    assert 5.0 < cost.estimate_s < 8.0
    with pytest.raises(UsageError, match="expected a finite number"):
        cost.observed(math.nan)
