"""The cost of a link: ``seconds = alpha + beta * bytes``, fitted to measured collectives.

Samples come from a running training job, where one in ten is late because something else had the core, and none is
early.  So each size counts with its lower quartile, and the fit uses medians (Theil-Sen) instead of least squares.

[Note: bursts]  Shaped links (cloud instances, traffic limits, our testbed) let the first hundred kilobytes after a
pause pass at once.  Small messages then show the latency but not the rate; large ones show the rate only in the
*difference* between two of them.  So alpha is what the smallest size takes, and beta comes from the others.  (A line
through all sizes made a link of 234 Mb/s appear a fifth faster than it was.)
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import combinations
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
    """Fit alpha and beta, both 0 or more, to ``(bytes on the wire, seconds)`` samples; see [Note: bursts].

    With a single size, startup and transfer cannot be told apart: all of the time is then attributed to the bytes,
    which keeps the prediction for that size right.

    >>> fit = fit_link([(1e4, 0.0011), (1e6, 0.011), (2e6, 0.021), (4e6, 0.041), (4e6, 0.041), (4e6, 0.9)])
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
    points = _pooled(sorted((size, sorted(times)[len(times) // 4]) for size, times in by_size.items()))
    (smallest, first_s), *others = points
    if not others:
        return Link(0.0, first_s / smallest, launch_s) if smallest > 0 else Link(first_s, 0.0, launch_s)
    large = others if len(others) > 1 else points
    slopes = [(t2 - t1) / (n2 - n1) for (n1, t1), (n2, t2) in combinations(large, 2)]
    beta = max(0.0, median(slopes))
    return Link(max(0.0, first_s - beta * smallest), beta, launch_s)


def _pooled(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Combine neighboring sizes into one point each, to limit the number of pairs."""
    width = -(-len(points) // MAX_SIZES)
    groups = [points[i : i + width] for i in range(0, len(points), width)]
    return [(median(n for n, _ in group), median(t for _, t in group)) for group in groups]
