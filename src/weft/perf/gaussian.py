"""Where to measure next: expected improvement on a Gaussian process, for a few knobs and a few noisy times.

Not a library: those we know would load for seconds and add a hundred megabytes to a training process, in mid-step.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product
from statistics import fmean, pvariance

Point = tuple[float, ...]

# Candidates per knob; plans are discrete anyway.
_GRID = 17
# Length scale of the kernel, in units of a knob's range.
_LENGTH = 0.3
# Measured step times scatter by about a percent.
_NOISE = 0.01
_MIN_SCATTER = 0.02
# A smaller relative gain is not worth a trial.
_WORTH = 0.002


class Proposals:
    """Proposes the candidate with the largest expected gain, given the measurements so far.

    >>> proposals = Proposals(((-2.0, 2.0),))
    >>> for x in (-1.0, 0.0, 1.0):
    ...     proposals.observe((x,), 1.0 + 0.1 * (x - 1.5) ** 2)
    >>> proposals.propose()[0] > 1.0
    True
    """

    def __init__(self, bounds: Sequence[tuple[float, float]]) -> None:
        self._bounds = tuple(bounds)
        axes = [[low + (high - low) * k / (_GRID - 1) for k in range(_GRID)] for low, high in self._bounds]
        self._candidates: list[Point] = list(product(*axes))
        self._points: list[Point] = []
        self._seconds: list[float] = []

    def observe(self, x: Point, seconds: float) -> None:
        self._points.append(x)
        self._seconds.append(seconds)

    def propose(self) -> Point:
        """The most promising candidate; the first one if there is a tie, so that results are reproducible."""
        if not self._points:
            return tuple(0.0 for _ in self._bounds)
        values = [seconds / self._seconds[0] for seconds in self._seconds]
        mean = fmean(values)
        scatter = max(math.sqrt(pvariance(values)), _MIN_SCATTER)
        known = [self._unit(point) for point in self._points]
        covariance = [
            [_kernel(a, b, scatter) + (_NOISE**2 if i == j else 0.0) for j, b in enumerate(known)]
            for i, a in enumerate(known)
        ]
        root = _cholesky(covariance)
        weights = _solve_transposed(root, _solve(root, [value - mean for value in values]))
        best = min(mean + _dot(weights, [_kernel(a, b, scatter) for b in known]) for a in known)

        def promise(candidate: Point) -> float:
            near = [_kernel(self._unit(candidate), b, scatter) for b in known]
            expected = mean + _dot(weights, near)
            spread = _solve(root, near)
            deviation = math.sqrt(max(scatter**2 - _dot(spread, spread), 1e-12))
            return _expected_improvement(best - _WORTH - expected, deviation)

        return max(self._candidates, key=promise)

    def _unit(self, point: Point) -> Point:
        return tuple((x - low) / (high - low) for x, (low, high) in zip(point, self._bounds, strict=True))


def _kernel(a: Point, b: Point, scatter: float) -> float:
    distance = sum((x - y) ** 2 for x, y in zip(a, b, strict=True))
    return scatter**2 * math.exp(-distance / (2 * _LENGTH**2))


def _expected_improvement(gain: float, deviation: float) -> float:
    z = gain / deviation
    density = math.exp(-z * z / 2) / math.sqrt(2 * math.pi)
    below = (1 + math.erf(z / math.sqrt(2))) / 2
    return gain * below + deviation * density


def _cholesky(matrix: list[list[float]]) -> list[list[float]]:
    root: list[list[float]] = []
    for i, row in enumerate(matrix):
        new: list[float] = []
        for j in range(i):
            new.append((row[j] - _dot(new, root[j][:j])) / root[j][j])
        new.append(math.sqrt(max(row[i] - _dot(new, new), 1e-12)))
        root.append(new)
    return root


def _solve(root: list[list[float]], right: Sequence[float]) -> list[float]:
    found: list[float] = []
    for row, value in zip(root, right, strict=True):
        found.append((value - _dot(row[:-1], found)) / row[-1])
    return found


def _solve_transposed(root: list[list[float]], right: Sequence[float]) -> list[float]:
    found = [0.0] * len(right)
    for i in reversed(range(len(right))):
        later = sum(root[k][i] * found[k] for k in range(i + 1, len(right)))
        found[i] = (right[i] - later) / root[i][i]
    return found


def _dot(a: Sequence[float], b: Sequence[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))
