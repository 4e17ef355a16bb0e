"""How noisy gradients are, from norms that a data-parallel step has anyway.  Pure.

[Note: two batch sizes in one step]  The expected squared norm of a gradient over b samples is |G|^2 + S / b, with the
mean gradient G and S the trace of one sample's covariance.  A worker's own gradient (b samples) and the average over
all workers (B samples) are two such equations, hence (McCandlish et al. 2018, appendix A)

    |G|^2 = (B |g_B|^2 - b |g_b|^2) / (B - b)        S = (|g_b|^2 - |g_B|^2) / (1/b - 1/B)

Both are unbiased, and far too noisy alone: each is averaged over many steps before the ratio S / |G|^2 is taken.
"""

from __future__ import annotations

import math

_HALF_LIFE = 20.0
"""Measurements after which an older one has half its weight."""
_MIN_MEASURED = 10
MAX_NOISE_SCALE = 1e12


class NoiseScale:
    """Exponentially weighted averages of |G|^2 and S, and their ratio."""

    def __init__(self) -> None:
        self.num_measured = 0
        self._keep = 0.5 ** (1.0 / _HALF_LIFE)
        self._mean_sqr = 0.0
        self._mean_var = 0.0

    def measured(self, own_samples: int, own_sqr: float, all_samples: int, all_sqr: float) -> None:
        """Squared norms of one worker's gradient and of the average over all workers, in the same step."""
        if not (0 < own_samples < all_samples and math.isfinite(own_sqr) and math.isfinite(all_sqr)):
            return  # one worker; or a step that a loss scaler will skip
        sqr = (all_samples * all_sqr - own_samples * own_sqr) / (all_samples - own_samples)
        var = (own_sqr - all_sqr) / (1.0 / own_samples - 1.0 / all_samples)
        self.num_measured += 1
        self._mean_sqr = self._keep * self._mean_sqr + (1.0 - self._keep) * sqr
        self._mean_var = self._keep * self._mean_var + (1.0 - self._keep) * var

    @property
    def samples(self) -> float | None:
        """The noise scale in samples; None until enough steps have been measured.

        Either average may be zero or negative: that of |G|^2 near a minimum, where noise drowns the gradient (then any
        reasonable batch is worth its samples), and that of S where gradients hardly differ (then none is).
        """
        if self.num_measured < _MIN_MEASURED:
            return None
        if self._mean_var <= 0.0:
            return 0.0
        return min(self._mean_var / self._mean_sqr, MAX_NOISE_SCALE) if self._mean_sqr > 0.0 else MAX_NOISE_SCALE
