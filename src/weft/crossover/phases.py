"""The two phases of a job on a shared device: a turn, in which it computes, and a gap, in which it does not.

The arbiter learns how long a job's turns and gaps usually are; the client detects gaps too short for a handover.
"""

from __future__ import annotations

import enum
from collections import deque
from dataclasses import dataclass

from weft.core.speed import MIN_GAP_HANDOVERS


class Role(enum.Enum):
    """How a job shares its device."""

    FAIR = "fair"
    """By time and weight."""
    PRIMARY = "primary"
    """Keeps its speed: the others give way at their next border."""
    FILLER = "filler"
    """Uses the gaps of the others."""
    LOCKSTEP = "lockstep"
    """One turn each in a fixed order, if all jobs on the device have this role."""


@dataclass(frozen=True, slots=True)
class TurnLimits:
    """The arbiter's time limits.  They affect speed only, never correctness."""

    soft_s: float = 2.0
    """When a holder without a known turn length is asked back, if another job waits."""
    hard_s: float = 10.0
    """When a holder that was asked back is overruled; far below any timeout of a process group."""
    courtesy_s: float = 0.005
    """How long to wait for a late job that is next in the group's order (or a tenth of its turn, if longer)."""
    lockstep_courtesy_s: float = 0.25
    filler_patience_s: float = 30.0
    """After waiting this long, a filler gets one turn as an equal, so that its workers elsewhere do not time out."""
    lead_turns: float = 1.5
    """How many of a waiting job's usual turns the holder may be ahead of it before it is asked back."""
    min_piece_s: float = 0.02
    """Shortest hold before a holder is asked back for fairness: a handover would cost more."""
    handover_s: float = 0.0005
    """Estimated cost of a handover; gaps shorter than three of these are not used."""
    tick_s: float = 0.025
    """Interval of ticks while a job waits; they recover from lost messages."""


def smoothed(old: float | None, new: float) -> float:
    """Exponential moving average of a duration."""
    return new if old is None else old + 0.3 * (new - old)


class GapWatch:
    """Decides whether a job's gaps are long enough for a handover.

    The next gap is expected to be too short only if all recent ones were: a step with many short waits and one long one
    must not lose the long one.

    >>> watch = GapWatch(handover_s=0.001, num_kept=2)
    >>> for gap_s in (0.5, 0.001, 0.001):
    ...     watch.saw(gap_s)
    >>> watch.is_too_short
    True
    """

    def __init__(self, handover_s: float, num_kept: int = 32) -> None:
        self._threshold_s = MIN_GAP_HANDOVERS * handover_s
        self._gaps: deque[float] = deque(maxlen=num_kept)
        self.is_too_short = False
        """Whether to keep the device in the next gap."""

    def saw(self, gap_s: float) -> None:
        self._gaps.append(gap_s)
        if gap_s >= self._threshold_s:
            self.is_too_short = False
        elif not self.is_too_short:
            self.is_too_short = len(self._gaps) == self._gaps.maxlen and max(self._gaps) < self._threshold_s
