"""The speed curve of a job that has run at only a few sizes, for both the controller and the simulator.

[Note: untried sizes]  Two devices that run two jobs side by side, or one after the other at 1.5 times the speed of one
device, give the same mean completion time.  So an untried size is expected to be 1.5 times as fast per doubling: it is
tried when devices are free, but no other job is stopped for it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from weft.core.cluster import Cluster, Shape
from weft.core.speed import SpeedCurve, StepTime
from weft.perf.fitting import MAX_EXTRAPOLATION, SpeedSample, fit_speed

UNTRIED_GAIN = 1.5
"""Expected speedup from twice the workers, if only one size was measured."""
MIN_HOPE = 0.05
"""A larger untried size is expected to be at least this much faster, so that idle devices are used to find out."""


def slowest_expected_s(tried: Mapping[int, StepTime], size: int) -> float:
    """The longest step to expect at ``size``, whatever a fit to the sizes ``tried`` predicts.

    >>> slowest_expected_s({1: StepTime(1.0), 4: StepTime(0.5)}, 8)
    0.475
    """
    nearest = _nearest(tried, size)
    perfect_s = tried[nearest].step_s * nearest / size
    return max(tried[nearest].step_s * (1.0 - MIN_HOPE), perfect_s) if size > nearest else perfect_s


def _nearest(tried: Mapping[int, StepTime], size: int) -> int:
    return min(tried, key=lambda other: (abs(math.log(other / size)), other))


def explored_curve(measured: Mapping[Shape, StepTime], allowed: Sequence[int], cluster: Cluster) -> SpeedCurve:
    """Measured times where available, expected ones up to twice the largest size tried.

    A fit to few points may be far off elsewhere, so it is limited to between no gain and perfect scaling from the
    nearest measured size.

    >>> curve = explored_curve({(2,): StepTime(0.6)}, (1, 2, 4), Cluster.uniform(1, 4))
    >>> [round(curve.times[size].step_s, 3) for size in (1, 2, 4)]
    [1.2, 0.6, 0.4]
    """
    model = fit_speed([SpeedSample(shape, time.step_s, time.exposed_s) for shape, time in measured.items()])
    tried = {sum(shape): time for shape, time in measured.items()}
    times = {}
    for size in sorted({*allowed, *tried}):
        if size > MAX_EXTRAPOLATION * max(tried):
            break
        nearest = _nearest(tried, size)
        known_s, perfect_s = tried[nearest].step_s, tried[nearest].step_s * nearest / size
        shape = cluster.packed_shape(size)
        if shape in measured:
            times[size] = measured[shape]
            continue
        if len(tried) > 1:
            low_s, high_s = sorted((perfect_s, known_s))
            step_s = max(model.predict_s(shape), low_s)
            step_s = min(step_s, high_s if size < nearest else slowest_expected_s(tried, size))
        elif size > nearest:
            step_s = known_s / UNTRIED_GAIN ** math.log2(size / nearest)
        else:
            step_s = perfect_s
        times[size] = StepTime(step_s, min(model.exposed_s(shape, step_s), step_s))
    return SpeedCurve(times, frozenset(size for size in times if cluster.packed_shape(size) not in measured))


def relatives_curve(measured: Mapping[Shape, StepTime], allowed: Sequence[int], cluster: Cluster) -> SpeedCurve | None:
    """What to expect of a job that has not run, from times measured in other jobs of its family; None if unknown."""
    if not measured:
        return None
    curve = explored_curve(measured, allowed, cluster)
    times = {size: time for size, time in curve.times.items() if size in allowed}
    return SpeedCurve(times, curve.untried & times.keys()) if times else None
