"""A wrong alpha or beta gives every job the wrong buckets."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.errors import UsageError
from weft.perf.link import MAX_SIZES, Link, fit_link

SIZES = [2**k * 100_000 for k in range(7)]


def test_clean_samples_give_back_the_link():
    fit = fit_link([(n, 2e-3 + 8e-9 * n) for n in SIZES])
    assert fit.alpha_s == pytest.approx(2e-3)
    assert fit.beta_s_per_byte == pytest.approx(8e-9)


def test_late_samples_do_not_move_the_fit():
    rng = random.Random(1)
    samples = []
    for n in SIZES * 9:
        late_s = rng.uniform(0.05, 1.0) if rng.random() < 0.25 else 0.0
        samples.append((n, (2e-3 + 8e-9 * n) * rng.uniform(1.0, 1.05) + late_s))
    fit = fit_link(samples)
    assert fit.beta_s_per_byte == pytest.approx(8e-9, rel=0.15)
    assert fit.alpha_s == pytest.approx(2e-3, rel=0.5)


def test_one_size_alone_is_predicted_right():
    fit = fit_link([(1e6, 0.01), (1e6, 0.012), (1e6, 0.5)])
    assert fit == Link(0.0, 0.01 / 1e6)


def test_empty_messages_alone_are_all_start_up():
    assert fit_link([(0, 0.003), (0, 0.005), (0, 0.004)]) == Link(0.003, 0.0)


def test_time_that_falls_with_size_is_read_as_start_up_only():
    fit = fit_link([(1e6, 0.03), (2e6, 0.02), (4e6, 0.01)])
    assert fit == Link(0.03, 0.0)


def test_a_negative_startup_time_is_taken_as_zero():
    fit = fit_link([(1e6, 0.001), (2e6, 0.010), (4e6, 0.030)])
    assert fit.alpha_s == 0.0
    assert fit.beta_s_per_byte > 0


def test_bursts_that_pass_at_once_do_not_make_a_link_appear_faster():
    burst, rate = 128 << 10, 30e6  # a shaper's bucket, and the bytes per second behind it
    sizes = [16 << 10, 256 << 10, 1 << 20, 4 << 20]
    fit = fit_link([(n, 5e-4 + max(0, n - burst) / rate) for n in sizes])
    assert fit.beta_s_per_byte == pytest.approx(1 / rate)
    assert fit.alpha_s == pytest.approx(0, abs=5e-4)


def test_launch_cost_is_passed_on():
    assert fit_link([(1e6, 0.01)], launch_s=1e-4).launch_s == 1e-4


def test_thousands_of_distinct_sizes_are_pooled():
    samples = [(1000 * n, 1e-3 + 1e-5 * n) for n in range(1, 20 * MAX_SIZES)]
    fit = fit_link(samples)
    assert fit.alpha_s == pytest.approx(1e-3)
    assert fit.beta_s_per_byte == pytest.approx(1e-8)


@given(st.lists(st.tuples(st.floats(0, 1e9), st.floats(0, 100)), min_size=1, max_size=30))
@settings(deadline=None)
def test_any_samples_give_a_usable_link(samples):
    fit = fit_link(samples)
    assert fit.alpha_s >= 0
    assert fit.beta_s_per_byte >= 0


@pytest.mark.parametrize("samples", [[], [(-1, 0.1)], [(1e6, float("nan"))], [(1e6, -0.1)]])
def test_invalid_link_samples_are_refused(samples):
    with pytest.raises(UsageError, match=r"expected|at least one"):
        fit_link(samples)
