"""What is believed of a job that has run at a few sizes only; the controller and the simulator believe the same.

[Note: untried sizes]  Two devices that run two jobs, or one job at 1.5 times the speed of one device and then the
other, finish both equally soon on average.  So a size that nobody has tried is expected to be 1.5 times as fast per
doubling: it is tried where devices are free, and no other job is stopped for a promise.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from weft.core.cluster import Cluster, Shape
from weft.core.speed import SpeedCurve, StepTime
from weft.perf.fitting import MAX_EXTRAPOLATION, SpeedSample, fit_speed

UNTRIED_GAIN = 1.5
"""Expected of twice the workers, where only one size is known."""
MIN_HOPE = 0.05
"""A larger size that was not tried is expected to be this much faster at least: idle devices are used to find out."""


def slowest_expected_s(tried: Mapping[int, StepTime], size: int) -> float:
    """The longest step that is believed of ``size``, whatever a fit to the sizes ``tried`` predicts.

    >>> slowest_expected_s({1: StepTime(1.0), 4: StepTime(0.5)}, 8)
    0.475
    """
    nearest = _nearest(tried, size)
    perfect_s = tried[nearest].step_s * nearest / size
    return max(tried[nearest].step_s * (1.0 - MIN_HOPE), perfect_s) if size > nearest else perfect_s


def _nearest(tried: Mapping[int, StepTime], size: int) -> int:
    return min(tried, key=lambda other: (abs(math.log(other / size)), other))


def explored_curve(measured: Mapping[Shape, StepTime], allowed: Sequence[int], cluster: Cluster) -> SpeedCurve:
    """Measured times where there are any, expected ones up to twice the largest size tried.

    A fit to few points may say anything elsewhere: it is kept between no gain at all and a perfect one, seen from
    the nearest measured size.

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
        alike, perfect_s = tried[nearest], tried[nearest].step_s * nearest / size
        shape = cluster.packed_shape(size)
        if shape in measured:
            times[size] = measured[shape]
            continue
        if len(tried) > 1:
            low_s, high_s = sorted((perfect_s, alike.step_s))
            step_s = max(model.predict(shape).step_s, perfect_s if size > nearest else low_s)
            step_s = min(step_s, high_s if size < nearest else slowest_expected_s(tried, size))
        elif size > nearest:
            step_s = alike.step_s / UNTRIED_GAIN ** math.log2(size / nearest)
        else:
            step_s = perfect_s
        times[size] = StepTime(step_s, min(model.exposed_s(shape, step_s), step_s))
    return SpeedCurve(times)
