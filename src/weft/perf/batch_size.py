"""Which global batch size makes the most progress per second.  Pure.

[Note: what a larger batch is worth]  A step on a batch of B samples follows a gradient whose noise falls as 1/B.  With
the noise scale N = tr(covariance of one sample's gradient) / |mean gradient|^2 (McCandlish et al. 2018; AdaScale and
Pollux use the same ratio), a step at B makes as much progress as

    gain = (B / base) x (N + base) / (N + B)

steps at the base batch: in proportion to B while B is far below N, and hardly more once it is far above.  A step costs
a fixed part plus a part that grows with each worker's samples.  The best batch is the one with the most
progress per second.  If a step had no fixed part, the smallest batch would always be the best one.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass

_NUM_TRIED = 48
"""Batch sizes compared, evenly spaced on a logarithmic scale."""
_WORTHWHILE = 1.02
"""A larger batch has to make this much more progress per second: measurements are no more accurate than that."""


@dataclass(frozen=True, slots=True)
class StepCost:
    """Seconds of a step on some number of workers: ``fixed_s`` plus ``sample_s`` per sample of one worker."""

    fixed_s: float
    sample_s: float

    def step_s(self, samples_per_worker: float) -> float:
        return self.fixed_s + self.sample_s * samples_per_worker


def gain(batch: float, base: float, noise_scale: float) -> float:
    """Progress of a step at ``batch``, in steps at ``base``.

    >>> round(gain(200, 100, noise_scale=1e9), 3), round(gain(1e9, 100, noise_scale=300), 3)
    (2.0, 4.0)
    """
    return batch / base * (noise_scale + base) / (noise_scale + batch)


def fitted_cost(samples: Iterable[tuple[float, float, float]]) -> StepCost | None:
    """From (samples per worker, step time, time spent waiting for the network) of some steps; None without any.

    With several batch sizes, a line through the medians of the smallest and the largest; with one, the wait counts as
    the fixed part.  That understates what a larger batch is worth if a step has other fixed costs, and never overstates
    it.

    >>> fitted_cost([(10, 1.5, 0.5), (10, 1.5, 0.5)])
    StepCost(fixed_s=0.5, sample_s=0.1)
    >>> fitted_cost([(10, 1.5, 0.0), (20, 2.0, 0.0)])
    StepCost(fixed_s=1.0, sample_s=0.05)
    """
    by_batch: dict[float, list[tuple[float, float]]] = {}
    for per_worker, step_s, exposed_s in samples:
        by_batch.setdefault(per_worker, []).append((step_s, exposed_s))
    if not by_batch:
        return None
    points = sorted((at, statistics.median(step_s for step_s, _ in kept)) for at, kept in by_batch.items())
    smallest, largest = points[0], points[-1]
    if len(points) > 1:
        sample_s = max((largest[1] - smallest[1]) / (largest[0] - smallest[0]), 0.0)
        # Neither part can be negative; noise must not make it so.
        return StepCost(max(smallest[1] - sample_s * smallest[0], 0.0), min(sample_s, smallest[1] / smallest[0]))
    at, step_s = smallest
    exposed_s = min(statistics.median(exposed_s for _, exposed_s in by_batch[at]), step_s)
    return StepCost(exposed_s, (step_s - exposed_s) / at)


def best_batch(low: int, high: int, num_workers: int, noise_scale: float, cost: StepCost) -> int:
    """The batch from ``low`` to ``high`` with the most progress per second; a multiple of the workers if there is one.

    >>> best_batch(256, 2048, num_workers=4, noise_scale=1e9, cost=StepCost(fixed_s=1.0, sample_s=0.001))
    2048
    >>> best_batch(256, 2048, num_workers=4, noise_scale=10.0, cost=StepCost(fixed_s=1.0, sample_s=0.001))
    256
    """
    best, best_rate = 0, 0.0
    for batch in _candidates(low, high, num_workers):
        rate = gain(batch, low, noise_scale) / cost.step_s(batch / num_workers)
        if best == 0 or rate > best_rate * _WORTHWHILE:
            best, best_rate = batch, rate
    return best


def _candidates(low: int, high: int, num_workers: int) -> list[int]:
    ratio = (high / low) ** (1.0 / (_NUM_TRIED - 1))
    wanted = [low * ratio**number for number in range(_NUM_TRIED)] if high > low else [float(low)]
    even = {num_workers * round(batch / num_workers) for batch in wanted}
    even |= {num_workers * math.ceil(low / num_workers), num_workers * (high // num_workers)}
    # Without a multiple of the number of workers in the range, the shares are uneven, and weighted.
    return sorted(batch for batch in even if low <= batch <= high) or sorted(
        {min(math.ceil(batch), high) for batch in wanted}
    )
