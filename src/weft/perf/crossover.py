"""How fast two jobs run when they take turns on the same devices.

One computes while the other waits for the network.  Let c, e, and n be the compute, exposed, and network time of a
step, and h a handover.  A round in which each job makes one step takes

    T* = max(sum(c + h), max(c + e), sum n when they share one link)

with e in place of n if only e was measured.  There are two ways to share.

[Note: taking turns]
Jobs with steps of different length do better when the shorter one makes k steps in a round.  These must fit
between two computations of the longer job; the last exchange runs under the longer job's computation:

    T*(k) = max(c_long + h + k (c_short + h) + (k - 1) e_short, c_long + e_long, k (c_short + e_short), sum n)

[Note: primary and filler]
The primary keeps its speed, T* = c + e of the primary, and the filler gets g = e - 2 h of every round.  It gives the
device back at the next border between layers, so a filler step may span many rounds: k may be a fraction.  When a
filler step is done, its exchange begins; the rest of that gap (half of it on average) is lost, and so are later gaps
until the exchange ends:

    k = g / (c_filler + min(e_filler, g / 2) + max(0, e_filler - g / 2 - c) g / T*)

and never more than the link or the filler itself allows.  Gaps under three handovers are not used.

[Note: what is lost]
T* is a lower bound: real steps vary, so a job whose turn has come may still be waiting.  Measured pairs that took turns
reached 0.87 of that gain (median of 13; 0.71 to 1.07), and with a filler 0.94 (of 3), or about 0.87 of what the filler
was to add.  Predictions are reduced accordingly; what they are still off by is why ``MIN_GAIN`` is not small.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from weft.core.speed import MIN_GAP_HANDOVERS, StepTime

FloatArray = NDArray[np.float64]

MAX_STEPS_PER_ROUND = 8
"""More steps of the short job in a round gain little and make the long one wait more often."""

MIN_GAIN = 0.15
"""Minimum gain of a pair over running one after the other: predictions are wrong by about that much."""

_KEPT = 0.87
"""See [Note: what is lost]."""


@dataclass(frozen=True, slots=True)
class PairSpeed:
    """Two jobs sharing devices: their speeds, and the gain over running one after the other."""

    first_steps_per_s: float
    second_steps_per_s: float
    gain: float
    """Work done per unit of time, where each job alone on the devices does 1."""


def turns_speed(first: StepTime, second: StepTime, handover_s: float = 0.0) -> PairSpeed:
    """The speeds in the best round for two jobs that take turns.

    >>> round(turns_speed(StepTime(2.0, exposed_s=1.0), StepTime(2.0, exposed_s=1.0)).gain, 2)
    1.74
    """
    return _single(turns_speeds(*_arrays(first, second), handover_s))


def filler_speed(primary: StepTime, filler: StepTime, handover_s: float = 0.0) -> PairSpeed:
    """``primary`` at its own speed, ``filler`` in its gaps.

    >>> round(filler_speed(StepTime(2.0, exposed_s=0.5), StepTime(1.0)).second_steps_per_s, 4)
    0.2175
    """
    return _single(filler_speeds(*_arrays(primary, filler), handover_s))


def turns_speeds(
    step_s: FloatArray,
    exposed_s: FloatArray,
    other_step_s: FloatArray,
    other_exposed_s: FloatArray,
    handover_s: float,
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """:func:`turns_speed` for whole arrays: steps per second of each side, and the gain."""
    swapped = (step_s < other_step_s) | ((step_s == other_step_s) & (exposed_s < other_exposed_s))
    long, short = np.where(swapped, other_step_s, step_s), np.where(swapped, step_s, other_step_s)
    long_e = np.where(swapped, other_exposed_s, exposed_s)
    short_e = np.where(swapped, exposed_s, other_exposed_s)
    k = np.arange(1.0, MAX_STEPS_PER_ROUND + 1).reshape(-1, *([1] * step_s.ndim))
    time_s = round_s(long, long_e, short, short_e, k, handover_s) / _KEPT
    gain = (long + k * short) / time_s
    best = np.argmax(gain * (1 - 1e-9 * k), axis=0)[None]
    time_s = np.take_along_axis(time_s, best, 0)[0]
    gain = np.take_along_axis(gain, best, 0)[0]
    short_per_s = (best[0] + 1) / time_s
    return np.where(swapped, short_per_s, 1 / time_s), np.where(swapped, 1 / time_s, short_per_s), gain


def filler_speeds(
    step_s: FloatArray,
    exposed_s: FloatArray,
    filler_step_s: FloatArray,
    filler_exposed_s: FloatArray,
    handover_s: float,
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """:func:`filler_speed` for whole arrays: steps per second of primary and filler, and the gain."""
    gap = np.where(exposed_s >= MIN_GAP_HANDOVERS * handover_s, exposed_s - 2 * handover_s, 0.0)
    gap = np.maximum(gap, 0.0)
    half = gap / 2
    compute, filler_compute = step_s - exposed_s, filler_step_s - filler_exposed_s
    late = np.maximum(0.0, filler_exposed_s - half - compute)
    needed = filler_compute + np.minimum(filler_exposed_s, half) + late * gap / step_s
    k = gap / np.maximum(needed, 1e-300)
    k = np.minimum(k, step_s / filler_step_s)
    k = np.minimum(k, compute / np.maximum(filler_exposed_s, 1e-300))  # the primary uses the link the rest of the time
    filler_per_s = _KEPT * k / step_s
    return 1 / step_s, filler_per_s, 1 + filler_per_s * filler_step_s


def round_s(
    long: FloatArray, long_e: FloatArray, short: FloatArray, short_e: FloatArray, k: FloatArray, handover_s: float
) -> FloatArray:
    """T*(k): one step of the long job and k of the short one."""
    alternating = long - long_e + handover_s + k * (short - short_e + handover_s) + (k - 1) * short_e
    rounds: FloatArray = np.maximum(np.maximum(alternating, long), np.maximum(k * short, long_e + k * short_e))
    return rounds


def _arrays(first: StepTime, second: StepTime) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    times = (first.step_s, first.exposed_s, second.step_s, second.exposed_s)
    a, b, c, d = (np.array([time_s]) for time_s in times)
    return a, b, c, d


def _single(speeds: tuple[FloatArray, FloatArray, FloatArray]) -> PairSpeed:
    first, second, gain = speeds
    return PairSpeed(float(first[0]), float(second[0]), float(gain[0]))
