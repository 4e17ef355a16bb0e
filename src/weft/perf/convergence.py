"""How many steps are left, estimated from the loss: loss(k) = 1 / (b0 k + b1) + b2."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize_scalar, nnls

from weft.errors import UsageError

_MIN_GAIN = 0.01


@dataclass(frozen=True, slots=True)
class LossCurve:
    """A fitted loss curve; ``floor`` is the loss it never goes below."""

    rate: float
    offset: float
    floor: float

    def loss(self, step: float) -> float:
        return 1.0 / (self.rate * step + self.offset) + self.floor

    def steps_to_standstill(self, steps_per_epoch: float) -> float:
        """Steps until an epoch improves the loss by less than 1 % of its value.

        The improvement per epoch only decreases, so bisection works.
        """
        if self.rate == 0:
            return 0.0

        def gains(step: float) -> bool:
            before = self.loss(step)
            return before - self.loss(step + steps_per_epoch) >= _MIN_GAIN * before

        if not gains(0.0):
            return 0.0
        high = steps_per_epoch
        while gains(high):
            high *= 2
        low = high / 2
        while high - low > 1e-6 * high:
            middle = (low + high) / 2
            low, high = (middle, high) if gains(middle) else (low, middle)
        return high


def fit_loss(steps: Sequence[float], losses: Sequence[float]) -> LossCurve:
    """Fit the curve to at least three points of decreasing trend.

    >>> curve = fit_loss(range(0, 100, 10), [1 / (0.1 * k + 0.5) + 0.2 for k in range(0, 100, 10)])
    >>> round(curve.floor, 3), round(curve.rate, 3)
    (0.2, 0.1)
    """
    if len(steps) != len(losses) or len(steps) < 3:
        raise UsageError(f"{len(steps)} steps and {len(losses)} losses: expected the same number, at least 3")
    at = np.asarray(steps, dtype=float)
    loss = np.asarray(losses, dtype=float)
    if not (np.isfinite(at).all() and np.isfinite(loss).all()):
        raise UsageError("a loss or a step is not a finite number: remove such points")

    def given(floor: float) -> tuple[float, tuple[float, float]]:
        height = loss - floor
        # 1 / height is linear in the step; weights height^2 turn its residuals into those of the loss.
        rows = np.stack([at, np.ones_like(at)], axis=1) * height[:, None] ** 2
        (rate, offset), _ = nnls(rows, height)
        fitted = 1.0 / np.maximum(rate * at + offset, 1e-12) + floor
        return float(np.sum((fitted - loss) ** 2)), (float(rate), float(offset))

    spread = float(loss.max() - loss.min()) or 1.0
    lowest = float(loss.min())
    found = minimize_scalar(
        lambda log_gap: given(lowest - math.exp(log_gap))[0],
        bounds=(math.log(1e-6 * spread), math.log(10 * spread)),
        method="bounded",
        options={"xatol": 1e-8},
    )
    floor = lowest - math.exp(float(found.x))
    _, (rate, offset) = given(floor)
    return LossCurve(rate, max(offset, 1e-12), floor)
