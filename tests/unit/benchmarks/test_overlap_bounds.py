from __future__ import annotations

import pytest
from benchmarks.overlap_bounds import (
    StepShape,
    barrier_bound_s,
    eager_bound_s,
    half_exchange_s,
    rate_for_ratio,
)
from hypothesis import given
from hypothesis import strategies as st

times_s = st.floats(min_value=1e-3, max_value=10)
shapes = st.builds(
    StepShape,
    forward_s=times_s,
    backward_s=times_s,
    update_s=st.floats(min_value=0, max_value=1),
    last_forward_s=st.just(0.0),
    last_backward_s=st.just(0.0),
    gradient_bytes=st.integers(min_value=1000, max_value=10**9),
    first_layer_bytes=st.integers(min_value=0, max_value=1000),
)
workers = st.integers(min_value=2, max_value=64)
rates = st.floats(min_value=1e6, max_value=1e11)


@given(shapes, workers, rates)
def test_no_bound_promises_less_than_the_compute_or_the_network(
    shape: StepShape, num_workers: int, rate: float
) -> None:
    network_s = 2 * half_exchange_s(shape.gradient_bytes, num_workers, rate)
    for bound_s in (barrier_bound_s(shape, num_workers, rate), eager_bound_s(shape, num_workers, rate)):
        compute_s = shape.forward_s + shape.backward_s + shape.update_s / num_workers
        assert bound_s >= max(compute_s, network_s) * (1 - 1e-9)


@given(shapes, workers, st.floats(min_value=0.05, max_value=5))
def test_the_link_rate_reaches_the_ratio_that_was_asked_for(shape: StepShape, num_workers: int, ratio: float) -> None:
    rate = rate_for_ratio(shape, num_workers, ratio)
    network_s = 2 * half_exchange_s(shape.gradient_bytes, num_workers, rate)
    assert network_s / shape.compute_s == pytest.approx(ratio)


@given(shapes, workers, rates, times_s)
def test_a_bound_is_below_the_step_alone_only_by_the_part_of_the_update_that_others_make(
    shape: StepShape, num_workers: int, rate: float, alone_s: float
) -> None:
    scaled = shape.scaled_to(alone_s)
    assert scaled.compute_s == pytest.approx(alone_s)
    shared_s = scaled.update_s * (1 - 1 / num_workers)
    assert barrier_bound_s(scaled, num_workers, rate) >= (alone_s - shared_s) * (1 - 1e-9)


def test_the_worked_example_of_the_design() -> None:
    """B = 2 F and R + G = 3 F, small first and last layers: ideal DDP 4 F, DeAR 3.5 F, barrier-free 3 F."""
    shape = StepShape(1.0, 2.0, 0.0, 0.0, 0.0, gradient_bytes=10**9, first_layer_bytes=0)
    rate = rate_for_ratio(shape, 2, 1.0)
    assert barrier_bound_s(shape, 2, rate) == pytest.approx(3.5)
    assert eager_bound_s(shape, 2, rate) == pytest.approx(3.0)


def test_a_large_first_layer_cannot_hide() -> None:
    small = StepShape(1.0, 2.0, 0.0, 0.0, 0.0, gradient_bytes=10**9, first_layer_bytes=0)
    large = StepShape(1.0, 2.0, 0.0, 0.0, 0.0, gradient_bytes=10**9, first_layer_bytes=10**8)
    rate = rate_for_ratio(small, 2, 0.5)
    assert eager_bound_s(large, 2, rate) > eager_bound_s(small, 2, rate)
