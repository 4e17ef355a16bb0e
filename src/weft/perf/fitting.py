"""From measured steps to a speed curve.

    T(w) = a B / w + b (w - 1) + c (w - 1) / w + d + e [more than one node]

with coefficients >= 0 (non-negative least squares on relative errors).  B is constant for a job and part of a.  At
measured sizes the measured value is used; between them the model is corrected to pass through its neighbors; beyond the
largest it is used up to twice that size.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from weft.core.cluster import Shape
from weft.core.speed import StepTime
from weft.errors import UsageError

MAX_EXTRAPOLATION = 2
"""Sizes beyond this many times the largest measured one are not predicted."""


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


@dataclass(frozen=True)
class SpeedModel:
    """A fit to the samples of one job at one global batch size."""

    coefficients: tuple[float, ...]
    measured: Mapping[tuple[int, int], StepTime]
    """Mean step time by (workers, nodes)."""

    def predict_s(self, shape: Shape) -> float:
        """The step time on ``shape``; refuses sizes too far beyond the measured ones."""
        workers, nodes = sum(shape), len(shape)
        largest = max(workers for workers, _ in self.measured)
        if workers > MAX_EXTRAPOLATION * largest:
            raise UsageError(
                f"cannot predict {workers} workers: at most {largest} were measured; "
                f"measure a size of at least {math.ceil(workers / MAX_EXTRAPOLATION)} first"
            )
        if (workers, nodes) in self.measured:
            return self.measured[workers, nodes].step_s
        return self._fitted_s(workers, nodes) * self._correction(workers, nodes)

    def exposed_s(self, shape: Shape, step_s: float) -> float:
        """Exposed communication in a step: measured, else the same share as at the nearest measured size."""
        key = (sum(shape), len(shape))
        if key in self.measured:
            return min(self.measured[key].exposed_s, step_s)
        nearest = min(self.measured, key=lambda other: (abs(math.log(other[0] / key[0])), other))
        return step_s * self.measured[nearest].exposed_s / self.measured[nearest].step_s

    def _fitted_s(self, workers: int, nodes: int) -> float:
        return float(np.dot(_features(workers, nodes), self.coefficients))

    def _correction(self, workers: int, nodes: int) -> float:
        """Measured / fitted, interpolated over log(workers) between neighbors that also use one node, or several."""
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
    >>> round(model.predict_s((3,)), 2)
    0.43
    """
    if not samples:
        raise UsageError("no measured steps to fit a speed model to: expected at least one sample")
    grouped: dict[tuple[int, int], list[SpeedSample]] = {}
    for sample in samples:
        grouped.setdefault((sample.workers, len(sample.shape)), []).append(sample)
    measured = {}
    for key, group in sorted(grouped.items()):
        step_s = statistics.fmean(one.step_s for one in group)
        measured[key] = StepTime(step_s, min(statistics.fmean(one.exposed_s for one in group), step_s))
    from scipy.optimize import nnls  # loaded by the first measured job: it would slow down every start of a controller

    times = np.array([time.step_s for time in measured.values()])
    rows = np.array([_features(*key) for key in measured]) / times[:, None]
    coefficients, _ = nnls(rows, np.ones(len(times)))
    if not coefficients.any():
        coefficients[0] = float(times[0] * next(iter(measured))[0])
    return SpeedModel(tuple(coefficients.tolist()), measured)


def _features(workers: int, nodes: int) -> tuple[float, ...]:
    return (1.0 / workers, workers - 1.0, (workers - 1.0) / workers, 1.0, 1.0 if nodes > 1 else 0.0)
