"""The cost of a link: ``seconds = alpha + beta * bytes``, fitted to measured collectives.

Samples come from a running training job, where one in ten is late because something else had the core.  So the fit uses
medians (Theil-Sen) instead of least squares: a third of the samples may be outliers without affecting it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median

from weft.errors import UsageError

# The number of pairs is quadratic in the number of sizes; beyond this many, neighboring sizes are pooled.
MAX_SIZES = 64


@dataclass(frozen=True, slots=True)
class Link:
    """A collective takes ``alpha + beta * bytes on the wire``, and ``launch`` on the computing thread."""

    alpha_s: float
    beta_s_per_byte: float
    launch_s: float = 0.0

    def __post_init__(self) -> None:
        costs = (self.alpha_s, self.beta_s_per_byte, self.launch_s)
        if not all(math.isfinite(cost) and cost >= 0 for cost in costs):
            raise UsageError(f"a link cannot cost {costs}: expected finite alpha, beta and launch, 0 or more")

    def seconds(self, num_bytes: float) -> float:
        return self.alpha_s + self.beta_s_per_byte * num_bytes


def fit_link(samples: Iterable[tuple[float, float]], *, launch_s: float = 0.0) -> Link:
    """Fit alpha and beta, both 0 or more, to ``(bytes on the wire, seconds)`` samples.

    With a single size, startup and transfer cannot be told apart: all of the time is then attributed to the bytes,
    which keeps the prediction for that size right.

    >>> fit = fit_link([(1e6, 0.011), (2e6, 0.021), (4e6, 0.04), (4e6, 0.041), (4e6, 0.9)])
    >>> round(fit.alpha_s, 6), round(fit.beta_s_per_byte * 1e6, 6)
    (0.001, 0.01)
    """
    by_size: dict[int, list[float]] = {}
    for num_bytes, seconds in samples:
        if not (math.isfinite(num_bytes) and math.isfinite(seconds) and num_bytes >= 0 and seconds >= 0):
            raise UsageError(f"a link sample of {num_bytes} bytes in {seconds} s: expected finite values, 0 or more")
        by_size.setdefault(round(num_bytes), []).append(seconds)
    if not by_size:
        raise UsageError("no link samples: time at least one collective before fitting its cost")
    points = _pooled(sorted((size, median(times)) for size, times in by_size.items()))
    slopes = [(t2 - t1) / (n2 - n1) for i, (n1, t1) in enumerate(points) for n2, t2 in points[i + 1 :] if n2 > n1]
    if not slopes:
        num_bytes, seconds = points[0]
        return Link(0.0, seconds / num_bytes, launch_s) if num_bytes > 0 else Link(seconds, 0.0, launch_s)
    beta = max(0.0, median(slopes))
    alpha = median(t - beta * n for n, t in points)
    if alpha < 0:  # fit through the origin instead of a negative startup time
        alpha, beta = 0.0, median(t / n for n, t in points if n > 0)
    return Link(alpha, beta, launch_s)


def _pooled(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Combine neighboring sizes into one point each, to limit the number of pairs."""
    width = -(-len(points) // MAX_SIZES)
    groups = [points[i : i + width] for i in range(0, len(points), width)]
    return [(median(n for n, _ in group), median(t for _, t in group)) for group in groups]
