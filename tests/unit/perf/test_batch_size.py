"""The noise of gradients is found from norms, and the batch size that makes the most progress follows from it."""

from __future__ import annotations

import math

import numpy as np
import pytest

from weft.perf.batch_size import StepCost, best_batch, fitted_cost, gain
from weft.perf.gradient_noise import MAX_NOISE_SCALE, NoiseScale


def measured(noise_scale: float, num_workers: int, per_worker: int, num: int, seed: int = 0) -> NoiseScale:
    """By synthetic gradients whose noise scale is known."""
    draw = np.random.default_rng(seed)
    dimensions = 2000
    mean = np.full(dimensions, math.sqrt(1.0 / dimensions))
    deviation = math.sqrt(noise_scale / dimensions)
    found = NoiseScale()
    for _ in range(num):
        own = mean + draw.normal(0.0, deviation / math.sqrt(per_worker), (num_workers, dimensions))
        own_sqr, all_sqr = float((own[0] ** 2).sum()), float((own.mean(axis=0) ** 2).sum())
        found.measured(per_worker, own_sqr, per_worker * num_workers, all_sqr)
    return found


@pytest.mark.parametrize("noise_scale", [20.0, 300.0, 2000.0])
@pytest.mark.parametrize("num_workers", [2, 8])
def test_the_noise_of_synthetic_gradients_is_found(noise_scale: float, num_workers: int) -> None:
    found = measured(noise_scale, num_workers, per_worker=64, num=150).samples
    assert found == pytest.approx(noise_scale, rel=0.25)


def test_nothing_is_said_after_a_few_steps_or_on_one_worker() -> None:
    assert measured(300.0, 2, per_worker=64, num=9).samples is None
    assert measured(300.0, 1, per_worker=64, num=100).samples is None


def test_steps_that_a_loss_scaler_skips_do_not_count() -> None:
    noise = measured(300.0, 2, per_worker=64, num=50)
    before = noise.samples
    noise.measured(64, math.inf, 128, math.nan)
    assert noise.samples == before


def test_noise_that_drowns_the_gradient_and_gradients_without_noise_have_a_scale() -> None:
    drowned, exact = NoiseScale(), NoiseScale()
    for _ in range(20):
        drowned.measured(1, 2.0, 2, 0.9)  # the estimate of the squared mean is below zero
        exact.measured(1, 1.0, 2, 1.0)
    assert (drowned.samples, exact.samples) == (MAX_NOISE_SCALE, 0.0)


def test_a_batch_far_below_the_noise_is_worth_its_samples_and_one_far_above_hardly_more() -> None:
    assert gain(512, 256, noise_scale=1e9) == pytest.approx(2.0, rel=1e-3)
    assert gain(512, 256, noise_scale=1.0) == pytest.approx(1.0, rel=1e-2)


def rate(batch: int, workers: int, noise_scale: float, cost: StepCost) -> float:
    return gain(batch, 1, noise_scale) / cost.step_s(batch / workers)


@pytest.mark.parametrize("workers", [1, 3, 4, 8])
@pytest.mark.parametrize("noise_scale", [0.0, 50.0, 500.0, 5e6])
@pytest.mark.parametrize("fixed_s", [0.0, 0.01, 0.5])
def test_no_other_batch_makes_noticeably_more_progress(workers: int, noise_scale: float, fixed_s: float) -> None:
    cost = StepCost(fixed_s, 1e-3)
    best = best_batch(64, 1024, workers, noise_scale, cost)
    assert 64 <= best <= 1024
    assert best % workers == 0
    most = max(rate(batch, workers, noise_scale, cost) for batch in range(64, 1025))
    assert rate(best, workers, noise_scale, cost) >= 0.96 * most


def test_a_range_without_a_multiple_of_the_workers_still_gives_a_batch() -> None:
    assert 9 <= best_batch(9, 11, 8, 1e9, StepCost(1.0, 0.1)) <= 11


def test_more_workers_never_get_a_smaller_batch() -> None:
    chosen = [best_batch(64, 4096, workers, 1000.0, StepCost(0.05, 1e-3)) for workers in (1, 2, 4, 8, 16)]
    assert chosen == sorted(chosen)
    assert chosen[0] < chosen[-1]


def test_the_cost_of_a_step_is_found_from_two_batch_sizes_and_guessed_from_one() -> None:
    true = StepCost(0.2, 0.01)
    two = fitted_cost([(size, true.step_s(size), 0.05) for size in (16, 64)])
    assert two is not None
    assert (two.fixed_s, two.sample_s) == pytest.approx((0.2, 0.01))
    assert fitted_cost([(16, 0.36, 0.06)]) == StepCost(0.06, pytest.approx(0.3 / 16))  # type: ignore[arg-type]
    assert fitted_cost([]) is None


def test_noise_in_step_times_makes_no_cost_negative() -> None:
    falling = fitted_cost([(16, 0.5, 0.0), (64, 0.4, 0.0)])
    rising = fitted_cost([(16, 0.1, 0.0), (64, 4.0, 0.0)])
    assert falling is not None
    assert rising is not None
    assert min(falling.fixed_s, falling.sample_s, rising.fixed_s, rising.sample_s) >= 0.0
