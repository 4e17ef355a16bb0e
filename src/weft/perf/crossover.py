"""How fast two jobs run when they take turns on the same devices.

One computes while the other waits for the network.  With c the compute, e the exposed and n the network time
of a step and h a handover, a round in which each job makes one step takes

    T* = max(sum(c + h), max(c + e), sum n when they share one link).

Jobs with steps of different length do better when the shorter one makes k steps in a round.  Its k steps must
fit between two computations of the longer job, its last exchange runs under the longer job's computation:

    T*(k) = max(c_long + k (c_short + h) + h + (k - 1) e_short, c_long + e_long, k (c_short + e_short), sum n)

which is T* for k = 1.  Every T*(k) belongs to a schedule that can be carried out; nothing is a fluid limit.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from weft.core.speed import StepTime

FloatArray = NDArray[np.float64]

MAX_STEPS_PER_ROUND = 8
"""More steps of the short job in a round gain little and make the long one wait ever more often."""

MIN_GAIN = 0.05
"""Pairs that finish their steps less than this much sooner than one after the other are not worth it."""


@dataclass(frozen=True, slots=True)
class PairSpeed:
    """Two jobs taking turns: their speeds, and the gain over running one after the other."""

    first_steps_per_s: float
    second_steps_per_s: float
    gain: float
    """Work done per unit of time, where each job alone on the devices does 1."""


def round_s(long: StepTime, short: StepTime, num_short_steps: int = 1, handover_s: float = 0.0) -> float:
    """T*(k): time of a round of one step of ``long`` and ``num_short_steps`` of ``short``.

    >>> round_s(StepTime(2.0, exposed_s=1.0), StepTime(2.0, exposed_s=1.0))
    2.0
    """
    k = num_short_steps
    return max(
        long.compute_s + handover_s + k * (short.compute_s + handover_s) + (k - 1) * short.exposed_s,
        long.step_s,
        k * short.step_s,
        long.exposed_s + k * short.exposed_s,
    )


def pair_speed(first: StepTime, second: StepTime, handover_s: float = 0.0) -> PairSpeed:
    """The best round for two jobs on the same devices.

    >>> pair_speed(StepTime(2.0, exposed_s=1.0), StepTime(2.0, exposed_s=1.0)).gain
    2.0
    """
    swapped = first.step_s < second.step_s
    long, short = (second, first) if swapped else (first, second)
    best = (0.0, 0.0, 0.0)
    for k in range(1, MAX_STEPS_PER_ROUND + 1):
        time_s = round_s(long, short, k, handover_s)
        gain = (long.step_s + k * short.step_s) / time_s
        if gain > best[0] * (1 + 1e-9):
            best = (gain, 1 / time_s, k / time_s)
    gain, long_per_s, short_per_s = best
    if swapped:
        return PairSpeed(short_per_s, long_per_s, gain)
    return PairSpeed(long_per_s, short_per_s, gain)


def pair_speeds(
    step_s: FloatArray,
    exposed_s: FloatArray,
    other_step_s: FloatArray,
    other_exposed_s: FloatArray,
    handover_s: float,
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """:func:`pair_speed` for whole arrays: steps per second of each side, and the gain."""
    swapped = step_s < other_step_s
    long, short = np.where(swapped, other_step_s, step_s), np.where(swapped, step_s, other_step_s)
    long_e = np.where(swapped, other_exposed_s, exposed_s)
    short_e = np.where(swapped, exposed_s, other_exposed_s)
    k = np.arange(1, MAX_STEPS_PER_ROUND + 1).reshape(-1, *([1] * step_s.ndim))
    time = np.maximum(
        np.maximum(long - long_e + handover_s + k * (short - short_e + handover_s) + (k - 1) * short_e, long),
        np.maximum(k * short, long_e + k * short_e),
    )
    gain = (long + k * short) / time
    best = np.argmax(gain * (1 - 1e-9 * k), axis=0)[None]
    time = np.take_along_axis(time, best, 0)[0]
    gain = np.take_along_axis(gain, best, 0)[0]
    short_per_s = (best[0] + 1) / time
    return np.where(swapped, short_per_s, 1 / time), np.where(swapped, 1 / time, short_per_s), gain
