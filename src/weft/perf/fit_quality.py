"""How well the speed model predicts sizes it has not seen."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from weft.perf.fitting import MAX_EXTRAPOLATION, SpeedSample, fit_speed


@dataclass(frozen=True, slots=True)
class LeftOut:
    """One size predicted from the others."""

    workers: int
    measured_s: float
    predicted_s: float

    @property
    def relative_error(self) -> float:
        return abs(self.predicted_s / self.measured_s - 1)


@dataclass(frozen=True, slots=True)
class FitQuality:
    """Errors over many left-out sizes."""

    num_predictions: int
    median_error: float
    worst_error: float


def left_out_predictions(samples: Sequence[SpeedSample]) -> list[LeftOut]:
    """Leave out one size at a time and predict it; sizes out of reach of the rest are skipped."""
    results: list[LeftOut] = []
    for left in sorted({sample.workers for sample in samples}):
        rest = [sample for sample in samples if sample.workers != left]
        if not rest or left > MAX_EXTRAPOLATION * max(sample.workers for sample in rest):
            continue
        model = fit_speed(rest)
        results.extend(
            LeftOut(left, sample.step_s, model.predict(sample.shape).step_s)
            for sample in samples
            if sample.workers == left
        )
    return results


def fit_quality(tables: Iterable[Sequence[SpeedSample]]) -> FitQuality:
    """Median and worst error over all left-out sizes of all tables (one table a job and batch size)."""
    errors = [one.relative_error for table in tables for one in left_out_predictions(table)]
    return FitQuality(len(errors), statistics.median(errors), max(errors))
