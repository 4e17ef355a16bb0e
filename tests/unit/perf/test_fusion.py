"""Plans: a bad one leaves communication exposed in every step of every job."""

from __future__ import annotations

import random
from itertools import combinations, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.errors import UsageError
from weft.perf.fusion import (
    MIN_LAUNCH_S,
    UNIFORM_MB,
    WORTH_A_BUCKET,
    describe,
    plan_cuts,
    scaled_cuts,
    uniform_cuts,
)
from weft.perf.link import Link
from weft.perf.recurrence import StepModel
from weft.perf.step_profile import Mode, ParameterTiming, StepProfile

WOVEN = (Mode.DDP, Mode.BARRIER, Mode.EAGER)


def random_case(seed: int, num_parameters: int) -> tuple[StepProfile, Link, int]:
    """Layers of very different sizes and speeds, on links from far too fast to far too slow."""
    rng = random.Random(seed)
    sizes = [int(10 ** rng.uniform(3, 6.5)) for _ in range(num_parameters)]
    paces = [rng.expovariate(1) + 0.02 for _ in range(num_parameters)]
    backward_s, forward_s = rng.uniform(0.2, 1.0), rng.uniform(0.1, 0.5)
    done, parameters = 0.0, []
    for size, pace in zip(sizes, paces, strict=True):
        done += pace / sum(paces)
        parameters.append(ParameterTiming(size, min(1, done) * backward_s, max(0, 1 - done) * forward_s))
    profile = StepProfile(tuple(parameters), forward_s, backward_s, 1e-9, 4)
    num_workers = rng.choice([2, 4, 8])
    network_over_compute = 10 ** rng.uniform(-0.7, 0.5)
    wire_bytes = 2 * profile.num_elements * 4 * (num_workers - 1) / num_workers
    link = Link(
        rng.choice([0.0, 1e-4, 1e-3, 2e-2]),
        network_over_compute * (forward_s + backward_s) / wire_bytes,
        rng.choice([MIN_LAUNCH_S, 5e-4, 2e-3]),
    )
    return profile, link, num_workers


@pytest.mark.parametrize("mode", WOVEN)
@pytest.mark.parametrize("seed", range(12))
def test_small_plans_are_as_good_as_trying_them_all(seed, mode):
    profile, link, num_workers = random_case(seed, num_parameters=8)
    model = StepModel(profile, link, num_workers)
    borders = model.ends[:-1]
    best_s = min(model.step_s(cuts, mode) for count in range(len(borders) + 1) for cuts in combinations(borders, count))
    assert model.step_s(plan_cuts(profile, link, num_workers, mode, 1), mode) <= best_s * 1.02


@pytest.mark.parametrize("mode", list(Mode))
@pytest.mark.parametrize("num_parameters", [1, 3, 60, 300])
@pytest.mark.parametrize("seed", range(3))
def test_planned_buckets_are_never_worse_than_one_size_for_all(seed, num_parameters, mode):
    profile, link, num_workers = random_case(seed, num_parameters)
    model = StepModel(profile, link, num_workers)
    best_s = min(model.step_s(uniform_cuts(profile, mb * 1e6, 8), mode) for mb in UNIFORM_MB)
    planned_s = model.step_s(plan_cuts(profile, link, num_workers, mode, 8), mode)
    assert planned_s <= best_s * (1 + WORTH_A_BUCKET)


def test_a_model_with_slow_tiny_first_layers_gets_buckets_of_different_sizes():
    """A CNN's shape: most bytes come early in backward, most of backward's time is in small layers."""
    sizes = [4_000_000, 2_000_000, 1_000_000, 200_000, 100_000, 50_000, 20_000, 10_000]
    parameters = tuple(ParameterTiming(size, 0.1 * (i + 1), 0.05 * (7 - i)) for i, size in enumerate(sizes))
    profile = StepProfile(parameters, 0.4, 0.8, 0.0, 4)
    link = Link(5e-3, 4e-8, 1e-4)
    model = StepModel(profile, link, 2)
    cuts = plan_cuts(profile, link, 2, Mode.BARRIER, 2)
    best_uniform_s = min(model.step_s(uniform_cuts(profile, mb * 1e6, 2), Mode.BARRIER) for mb in UNIFORM_MB)
    assert model.step_s(cuts, Mode.BARRIER) < 0.97 * best_uniform_s
    widths = [b - a for a, b in pairwise([0, *cuts, profile.num_elements])]
    assert widths[0] > 4 * widths[-1]


@given(
    st.integers(0, 10_000),
    st.integers(1, 20),
    st.sampled_from([1, 6, 128, 10**9]),
    st.sampled_from(list(Mode)),
)
@settings(max_examples=40, deadline=None)
def test_every_plan_can_be_carried_out(seed, num_parameters, granularity, mode):
    profile, link, num_workers = random_case(seed, num_parameters)
    cuts = plan_cuts(profile, link, num_workers, mode, granularity)
    assert all(cut % granularity == 0 for cut in cuts)
    assert list(cuts) == sorted(set(cuts))
    assert all(0 < cut < profile.num_elements for cut in cuts)
    assert cuts == plan_cuts(profile, link, num_workers, mode, granularity)


def test_costly_start_up_fuses_everything_that_hides():
    profile, _, _ = random_case(0, 40)
    cheap = plan_cuts(profile, Link(1e-6, 1e-9), 2, Mode.BARRIER, 1)
    costly = plan_cuts(profile, Link(0.5, 1e-9), 2, Mode.BARRIER, 1)
    assert costly == ()
    assert len(cheap) >= 1


def test_one_worker_gets_one_bucket():
    profile, link, _ = random_case(0, 40)
    assert plan_cuts(profile, link, 1, Mode.BARRIER, 1) == ()


def test_gathers_that_are_read_out_of_order_are_planned_for():
    """Tied weights: ready last, and read both first and last."""
    profile, link, num_workers = random_case(3, 30)
    shuffled = list(profile.parameters)
    shuffled[5] = ParameterTiming(shuffled[5].num_elements, shuffled[5].ready_s, 0.0)
    tied = StepProfile(tuple(shuffled), profile.forward_s, profile.backward_s, 1e-9, 4)
    model = StepModel(tied, link, num_workers)
    best_s = min(model.step_s(uniform_cuts(tied, mb * 1e6, 1), Mode.BARRIER) for mb in UNIFORM_MB)
    planned_s = model.step_s(plan_cuts(tied, link, num_workers, Mode.BARRIER, 1), Mode.BARRIER)
    assert planned_s <= best_s * (1 + WORTH_A_BUCKET)


@pytest.mark.parametrize("mode", WOVEN)
def test_knobs_at_zero_leave_the_planned_buckets_alone(mode):
    profile, link, num_workers = random_case(7, 60)
    planned = plan_cuts(profile, link, num_workers, mode, 4)
    assert scaled_cuts(profile, link, num_workers, mode, 4, 0.0, 0.0) == planned


def test_fusion_options_have_their_documented_effect():
    profile, link, num_workers = random_case(7, 60)
    args = (profile, Link(1e-4, link.beta_s_per_byte, 1e-4), num_workers, Mode.BARRIER, 4)
    planned = scaled_cuts(*args)
    assert len(scaled_cuts(*args, 1.0)) < len(planned) < len(scaled_cuts(*args, -1.0))

    def last_width(cuts):
        return profile.num_elements - cuts[-1]

    assert last_width(scaled_cuts(*args, 0.0, 1.0)) <= last_width(planned)
    assert last_width(scaled_cuts(*args, 0.0, -1.0)) > last_width(scaled_cuts(*args, 0.0, 1.0))


@given(st.integers(0, 100), st.floats(-3, 3), st.floats(-2, 2))
@settings(max_examples=40, deadline=None)
def test_any_turn_of_the_knobs_gives_a_plan(seed, log2_scale, log2_tilt):
    profile, link, num_workers = random_case(seed, 12)
    cuts = scaled_cuts(profile, link, num_workers, Mode.BARRIER, 16, log2_scale, log2_tilt)
    StepModel(profile, link, num_workers).buckets(cuts)  # raises if it does not split the buffer
    assert all(cut % 16 == 0 for cut in cuts)


def test_uniform_buckets_have_the_requested_size():
    profile = StepProfile((ParameterTiming(1_000_000, 1.0, 0.0),), 1.0, 1.0, 0.0, 4)
    assert uniform_cuts(profile, 1e6, 1000) == (250_000, 500_000, 750_000)
    assert uniform_cuts(profile, 1e9, 1000) == ()
    assert uniform_cuts(profile, 1.0, 400_000) == (400_000, 800_000)


def test_plan_in_words():
    assert describe((100_000, 1_600_000), 25_000_000, 4) == "3 buckets, 0.4 to 93.6 MB, 25.0 M parameters"
    assert describe((), 1_500_000, 2) == "1 bucket, 3.0 MB, 1.5 M parameters"
    assert describe((500,), 1000, 4).startswith("2 buckets, 0.0 MB")


def test_granularity_must_be_positive():
    profile, link, num_workers = random_case(0, 3)
    with pytest.raises(UsageError, match="granularity of 0"):
        plan_cuts(profile, link, num_workers, Mode.BARRIER, 0)
    with pytest.raises(UsageError, match="granularity of -1"):
        uniform_cuts(profile, 1e6, -1)
