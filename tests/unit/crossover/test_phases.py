"""A job keeps the device through gaps too short for a handover, and still uses a long one among them."""

from __future__ import annotations

from weft.crossover.phases import GapWatch


def test_a_job_with_one_long_gap_per_step_keeps_sharing() -> None:
    watch = GapWatch(handover_s=0.001)
    for _ in range(20):
        for gap_s in (0.0001,) * 10 + (0.5,):
            watch.saw(gap_s)
            assert not watch.is_too_short


def test_a_job_with_short_gaps_only_keeps_the_device_until_one_is_long() -> None:
    watch = GapWatch(handover_s=0.001, num_kept=8)
    for _ in range(7):
        watch.saw(0.0029)
    assert not watch.is_too_short
    watch.saw(0.0029)
    assert watch.is_too_short
    watch.saw(0.003)
    assert not watch.is_too_short
