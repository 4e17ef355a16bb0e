"""What tuning plans with: the median of the measured steps, whatever a busy machine did to single ones."""

from __future__ import annotations

import pytest

from weft.overlap.layout import Lane, Slot
from weft.overlap.step_times import StepTimes
from weft.overlap.tuning import measured_profile

LANE = Lane((Slot(1, 64, 0), Slot(0, 64, 64)), num_elements=128, element_bytes=4)


def step(number: int, **values: object) -> StepTimes:
    """A step of one second: forward, twice as long backward, and a short update."""
    moments = {"forward_end_s": 0.3, "backward_end_s": 0.9, "update_begin_s": 0.9, "end_s": 1.0}
    seen: dict[str, object] = {"ready_s": {1: 0.2, 0: 0.6}, "read_s": {0: 0.0, 1: 0.2}}
    return StepTimes(number, 0.0, **{**moments, **seen, **values})  # type: ignore[arg-type]


def test_the_profile_is_the_median_step() -> None:
    slow = step(3, forward_end_s=5.0, backward_end_s=5.6, update_begin_s=5.6, end_s=9.0)
    profile = measured_profile(LANE, [step(1), step(2), slow], num_elements=128, num_workers=2)
    assert (profile.forward_s, profile.backward_s) == (pytest.approx(0.3), pytest.approx(0.6))
    assert profile.update_s_per_element == pytest.approx(0.1 * 2 / 128)
    assert [(p.ready_s, p.read_s) for p in profile.parameters] == [(0.2, 0.2), (pytest.approx(0.6), 0.0)]


@pytest.mark.parametrize(
    ("longer_than_its_phase", "phase"),
    [("forward_wait_s", "forward_s"), ("backward_wait_s", "backward_s"), ("step_wait_s", "update_s_per_element")],
)
def test_a_wait_measured_longer_than_its_phase_does_not_end_training(longer_than_its_phase: str, phase: str) -> None:
    """The two are read at different moments; the difference was below zero, and planning with it raised an error."""
    steps = [step(number, **{longer_than_its_phase: 0.7}) for number in range(3)]
    profile = measured_profile(LANE, steps, num_elements=128, num_workers=2)
    assert getattr(profile, phase) == 0.0
    assert all(0.0 <= p.ready_s <= profile.backward_s for p in profile.parameters)
    assert all(0.0 <= p.read_s <= profile.forward_s for p in profile.parameters)


def test_a_parameter_that_was_never_seen_is_ready_last_and_read_first() -> None:
    profile = measured_profile(LANE, [step(1, ready_s={1: 0.2}, read_s={1: 0.2})], num_elements=128, num_workers=2)
    assert (profile.parameters[1].ready_s, profile.parameters[1].read_s) == (profile.backward_s, 0.0)
