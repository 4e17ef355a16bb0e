"""From measured steps to a speed curve.

    T(w) = a B / w + b (w - 1) + c (w - 1) / w + d + e [more than one node]

with coefficients >= 0 (non-negative least squares on relative errors).  B is constant for a job and part
of a.  At measured sizes the measured value counts; between them the model is bent to pass through its
neighbours; beyond the largest it is followed up to twice that size and no further.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.optimize import nnls

from weft.core.cluster import Cluster, Shape
from weft.core.speed import SpeedCurve, StepTime
from weft.errors import UsageError

MAX_EXTRAPOLATION = 2
"""A size beyond this many times the largest measured one is not predicted."""


@dataclass(frozen=True, slots=True)
class SpeedSample:
    """One measurement: workers per node, step time, exposed communication."""

    shape: Shape
    step_s: float
    exposed_s: float = 0.0

    def __post_init__(self) -> None:
        if not self.shape or not (math.isfinite(self.step_s) and self.step_s > 0):
            raise UsageError(
                f"a step of {self.step_s} s on {self.shape}: expected a positive time and at least one worker"
            )

    @property
    def workers(self) -> int:
        return sum(self.shape)


@dataclass(frozen=True, slots=True)
class Prediction:
    """A step time with its uncertainty (one standard deviation) and where it comes from."""

    step_s: float
    error_s: float
    source: Literal["measured", "interpolated", "extrapolated"]


@dataclass(frozen=True)
class SpeedModel:
    """A fit to the samples of one job at one global batch size."""

    coefficients: tuple[float, ...]
    measured: Mapping[tuple[int, int], StepTime]
    """Mean step time by (workers, nodes)."""
    relative_error: float
    """Standard deviation of measured / fitted."""

    @property
    def largest_measured(self) -> int:
        return max(workers for workers, _ in self.measured)

    def predict(self, shape: Shape) -> Prediction:
        """The step time on ``shape``; refuses sizes the measurements say nothing about."""
        workers, nodes = sum(shape), len(shape)
        if workers > MAX_EXTRAPOLATION * self.largest_measured:
            raise UsageError(
                f"{workers} workers were asked for, at most {self.largest_measured} were measured: "
                f"measure a size of at least {math.ceil(workers / MAX_EXTRAPOLATION)} first"
            )
        if (workers, nodes) in self.measured:
            step_s = self.measured[workers, nodes].step_s
            return Prediction(step_s, 0.0, "measured")
        step_s = self._fitted_s(workers, nodes) * self._bend(workers, nodes)
        if workers <= self.largest_measured:
            return Prediction(step_s, self.relative_error * step_s, "interpolated")
        distance = workers / self.largest_measured
        return Prediction(step_s, self.relative_error * step_s * distance, "extrapolated")

    def exposed_s(self, shape: Shape, step_s: float) -> float:
        """Exposed communication in a step: measured, else the share of the nearest measured size on as
        many workers."""
        key = (sum(shape), len(shape))
        if key in self.measured:
            return min(self.measured[key].exposed_s, step_s)
        nearest = min(self.measured, key=lambda other: (abs(math.log(other[0] / key[0])), other))
        return step_s * self.measured[nearest].exposed_s / self.measured[nearest].step_s

    def curve(self, sizes: Iterable[int], cluster: Cluster) -> SpeedCurve:
        """Step times at those of ``sizes`` that may be predicted, each packed on as few nodes as possible."""
        times = {}
        for size in sizes:
            if size <= MAX_EXTRAPOLATION * self.largest_measured:
                shape = cluster.packed_shape(size)
                step_s = self.predict(shape).step_s
                times[size] = StepTime(step_s, self.exposed_s(shape, step_s))
        return SpeedCurve(times)

    def _fitted_s(self, workers: int, nodes: int) -> float:
        return float(np.dot(_features(workers, nodes), self.coefficients))

    def _bend(self, workers: int, nodes: int) -> float:
        """Measured / fitted, interpolated over log(workers) between the neighbours on as many nodes (1 or
        more)."""
        alike = {
            key[0]: time.step_s / self._fitted_s(*key)
            for key, time in self.measured.items()
            if (key[1] > 1) == (nodes > 1)
        }
        if not alike:
            return 1.0
        known = sorted(alike)
        return float(np.interp(math.log(workers), np.log(known), [alike[size] for size in known]))


def fit_speed(samples: Sequence[SpeedSample]) -> SpeedModel:
    """Fit the model to at least one sample.

    >>> model = fit_speed([SpeedSample((w,), 1.0 / w + 0.1) for w in (1, 2, 4)])
    >>> round(model.predict((3,)).step_s, 2)
    0.43
    """
    if not samples:
        raise UsageError("no measured steps to fit a speed model to: expected at least one sample")
    grouped: dict[tuple[int, int], list[SpeedSample]] = {}
    for sample in samples:
        grouped.setdefault((sample.workers, len(sample.shape)), []).append(sample)
    measured = {
        key: StepTime(
            statistics.fmean(one.step_s for one in group),
            min(
                statistics.fmean(one.exposed_s for one in group),
                statistics.fmean(one.step_s for one in group),
            ),
        )
        for key, group in sorted(grouped.items())
    }
    times = np.array([time.step_s for time in measured.values()])
    rows = np.array([_features(*key) for key in measured]) / times[:, None]
    coefficients, _ = nnls(rows, np.ones(len(times)))
    if not coefficients.any():
        coefficients[0] = float(times[0] * next(iter(measured))[0])
    ratios = 1.0 / (rows @ coefficients)
    # With as many unknowns as samples residuals say nothing: keep a floor.
    freedom = max(1, len(times) - int(np.count_nonzero(coefficients)))
    relative_error = max(0.02, float(np.sqrt(np.sum((ratios - 1.0) ** 2) / freedom)))
    return SpeedModel(tuple(coefficients.tolist()), measured, relative_error)


def _features(workers: int, nodes: int) -> tuple[float, ...]:
    return (1.0 / workers, workers - 1.0, (workers - 1.0) / workers, 1.0, 1.0 if nodes > 1 else 0.0)
