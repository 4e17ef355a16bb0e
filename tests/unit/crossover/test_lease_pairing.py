"""Jobs are paired when it pays, and told why; pairs that do not pay are split."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.crossover.pairing import MIN_REALISED_GAIN, Measured, Way, explain, pair_up, prospects, refusal, review
from weft.errors import UsageError
from weft.perf.crossover import MIN_GAIN, turns_speed

HANDOVER_S = 0.0005


def overlapped(name: str, network_over_compute: float) -> Measured:
    """A job that hides reduce-scatter under backward (2/3) and gather under forward (1/3), as DeAR does."""
    half = network_over_compute / 2
    step_s = max(2 / 3, half) + max(1 / 3, half)
    return Measured(name, compute_s=1.0, exposed_s=step_s - 1.0, network_s=network_over_compute)


@st.composite
def measured(draw: st.DrawFn, name: str = "job") -> Measured:
    exposed_s = draw(st.floats(0.0, 2.0))
    return Measured(
        name,
        compute_s=draw(st.floats(0.01, 2.0)),
        exposed_s=exposed_s,
        network_s=draw(st.none() | st.floats(exposed_s, 4.0)),
        memory_bytes=draw(st.integers(0, 8)) << 30,
        num_workers=draw(st.sampled_from([1, 2])),
    )


def test_the_prediction_is_the_simulators() -> None:
    one, other = Measured("a", 1.0, 0.9), Measured("b", 0.8, 0.5)
    best = prospects(one, other, HANDOVER_S)[0]
    assert best.way is Way.TURNS
    assert best.speed == turns_speed(one.step, other.step, HANDOVER_S)


@pytest.mark.parametrize(
    ("ratio", "gain"), [(0.5, 1.0), (2 / 3, 1.0), (0.8, 1.067), (1.0, 1.167), (1.2, 1.056), (1.4, 1.0)]
)
def test_jobs_that_overlap_by_themselves_gain_only_where_the_design_says(ratio: float, gain: float) -> None:
    one, other = overlapped("a", ratio), overlapped("b", ratio)
    assert prospects(one, other, handover_s=0.0)[0].gain == pytest.approx(gain, abs=0.001)
    assert (refusal(one, other, handover_s=0.0) is None) == (gain > 1 + MIN_GAIN)


def test_nobody_is_paired_while_there_are_devices_for_all() -> None:
    jobs = [Measured(name, 1.0, 1.0) for name in "ab"]
    assert pair_up(jobs, num_devices=2, handover_s=HANDOVER_S).pairs == ()
    assert len(pair_up(jobs, num_devices=1, handover_s=HANDOVER_S).pairs) == 1


def test_no_more_pairs_are_made_than_are_needed() -> None:
    jobs = [Measured(name, 1.0, 1.0) for name in "abcd"]
    assert len(pair_up(jobs, num_devices=3, handover_s=HANDOVER_S).pairs) == 1
    assert len(pair_up(jobs, num_devices=2, handover_s=HANDOVER_S).pairs) == 2


def test_memory_that_does_not_fit_keeps_jobs_apart() -> None:
    jobs = [Measured(name, 1.0, 1.0, memory_bytes=6 << 30) for name in "ab"]
    result = pair_up(jobs, num_devices=1, handover_s=HANDOVER_S, device_memory_bytes=8 << 30)
    assert result.pairs == ()
    assert "12.0 GiB" in result.reasons["a"]


def test_a_job_that_does_not_want_to_share_does_not() -> None:
    jobs = [Measured("a", 1.0, 1.0), Measured("b", 1.0, 1.0, may_share=False)]
    assert "b does not want to share" in pair_up(jobs, num_devices=1, handover_s=HANDOVER_S).reasons["a"]


def test_a_cap_on_slowdown_is_kept() -> None:
    jobs = [Measured("a", 1.0, 0.3, max_slowdown=1.2), Measured("b", 1.0, 0.3, max_slowdown=1.2)]
    assert refusal(*jobs, HANDOVER_S) is not None
    generous = [Measured("a", 1.0, 0.3), Measured("b", 1.0, 0.3)]
    assert refusal(*generous, HANDOVER_S) is None


def test_a_job_that_can_wait_fills_the_gaps_of_one_that_cannot() -> None:
    primary = Measured("a", 1.0, 0.5, max_slowdown=1.01)
    filler = Measured("b", 0.2, 0.0, max_slowdown=100.0)
    (pair,) = pair_up([primary, filler], num_devices=1, handover_s=HANDOVER_S).pairs
    assert pair.filler == "b"
    assert pair.slowdowns[0] == pytest.approx(1.0)


@settings(max_examples=50, deadline=None)
@given(jobs=st.lists(measured(), min_size=1, max_size=6), num_devices=st.integers(1, 6))
def test_every_job_is_in_one_pair_at_most_and_has_a_sentence(jobs: list[Measured], num_devices: int) -> None:
    named = [
        Measured(f"job{i}", job.compute_s, job.exposed_s, job.network_s, job.memory_bytes, job.num_workers)
        for i, job in enumerate(jobs)
    ]
    result = pair_up(named, num_devices, HANDOVER_S, device_memory_bytes=8 << 30)
    paired = [name for pair in result.pairs for name in pair.jobs]
    assert len(paired) == len(set(paired))
    assert result.reasons.keys() == {job.job for job in named}
    for pair in result.pairs:
        assert pair.gain >= 1 + MIN_GAIN
        assert pair.keeps_caps
        assert pair.first.memory_bytes + pair.second.memory_bytes <= 8 << 30


def test_the_matching_is_the_best_one_and_not_the_first() -> None:
    # a would take b, its best partner; then c and d were left, who cannot share.
    jobs = [Measured("a", 1.0, 1.0), Measured("b", 1.0, 1.0), Measured("c", 1.0, 0.05), Measured("d", 1.0, 0.05)]
    result = pair_up(jobs, num_devices=2, handover_s=0.0)
    total = sum(pair.gain - 1 for pair in result.pairs)
    gains = {
        frozenset((one.job, other.job)): prospects(one, other, 0.0)[0].gain - 1
        for one, other in combinations(jobs, 2)
        if refusal(one, other, 0.0) is None
    }
    assert len(result.pairs) == 2
    assert total > gains[frozenset("ab")]


def test_a_pair_that_brings_nothing_is_split_and_one_that_does_goes_on() -> None:
    pair = prospects(Measured("a", 1.0, 1.0), Measured("b", 1.0, 1.0), 0.0)[0]
    bad = review(pair, 0.25, 0.25 + MIN_REALISED_GAIN / 4)
    assert bad.should_split
    assert "split" in bad.reason
    good = review(pair, 0.45, 0.45)
    assert not good.should_split
    assert good.gain == pytest.approx(1.8)


def test_both_jobs_of_a_pair_are_told_with_whom_and_what_for() -> None:
    sentences = explain(prospects(Measured("a", 1.0, 1.0), Measured("b", 1.0, 1.0), 0.0)[0])
    assert "takes turns with b" in sentences["a"]
    assert "2.00 times the work" in sentences["b"]


def test_a_report_that_cannot_be_is_refused() -> None:
    with pytest.raises(UsageError, match="computing > 0"):
        Measured("a", compute_s=0.0, exposed_s=1.0)
