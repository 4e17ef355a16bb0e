"""When a loss stops improving."""

from __future__ import annotations

import math
from collections.abc import Sequence

_MAX_LOSS = 1e100
"""Its square is still finite."""


def steps_to_rest(losses: Sequence[tuple[int, float]], steps_per_epoch: float) -> float | None:
    """The step at which the loss stops improving, by the fitted loss curve; ``None`` if unknown."""
    if not all(0 <= loss < _MAX_LOSS for _, loss in losses):
        return None  # the curve models losses that approach a floor of zero or more
    # scipy's optimizer is loaded by the first job that needs it.
    from weft.perf.convergence import LossCurve, fit_loss

    curve = fit_loss([at for at, _ in losses], [loss for _, loss in losses])
    rest = LossCurve(curve.rate, curve.offset, max(curve.floor, 0.0)).steps_to_standstill(max(steps_per_epoch, 1.0))
    return rest if math.isfinite(rest) else None
