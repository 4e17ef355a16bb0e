"""Untried sizes: their speed must be neither overestimated nor underestimated."""

from __future__ import annotations

from weft.core.cluster import Cluster
from weft.core.speed import StepTime
from weft.perf.exploration import explored_curve

CLUSTER = Cluster.uniform(2, 4)


def test_one_measured_size_promises_no_more_than_is_fair_to_others() -> None:
    curve = explored_curve({(2,): StepTime(0.6, 0.1)}, (1, 2, 3, 4, 8), CLUSTER)
    assert [round(curve.times[size].step_s, 3) for size in (1, 2, 4)] == [1.2, 0.6, 0.4]
    assert 0.4 < curve.times[3].step_s < 0.6
    assert 8 not in curve.times


def test_fit_stays_between_no_gain_and_a_perfect_one() -> None:
    measured = {(2,): StepTime(0.5), (4,): StepTime(0.45)}
    curve = explored_curve(measured, tuple(range(1, 9)), CLUSTER)
    assert 0.5 <= curve.times[1].step_s <= 1.0
    assert curve.times[8].step_s >= 0.45 / 2
    assert curve.times[2].step_s == 0.5
