"""The two phases of a job on a shared device: a turn, in which it computes, and a gap, in which it does not.

The arbiter learns from both how long a job usually needs; the client finds out that its gaps are too short to be
worth giving the device away.
"""

from __future__ import annotations

import enum
from collections import deque
from dataclasses import dataclass


class Role(enum.Enum):
    """How a job shares its device."""

    FAIR = "fair"
    """By time and weight."""
    PRIMARY = "primary"
    """Keeps its speed: the others give way at their next border."""
    FILLER = "filler"
    """Takes what the others leave."""
    LOCKSTEP = "lockstep"
    """One turn each in a fixed order, where all jobs of the device say so."""


@dataclass(frozen=True, slots=True)
class TurnLimits:
    """How long the arbiter is patient.  All of it is a matter of speed, none of correctness."""

    soft_s: float = 2.0
    """Holder without a known turn is asked back after this long, with somebody waiting."""
    hard_s: float = 10.0
    """Holder that gave nothing back is overruled after this long; far below any time-out of a process group."""
    courtesy_s: float = 0.005
    """A job that is next by the order of the group, but not there, is waited for so long, or a tenth of its turn."""
    lockstep_courtesy_s: float = 0.25
    filler_patience_s: float = 30.0
    """A filler that waited this long counts as an equal once, or its peers on other hosts would time out."""
    lead_turns: float = 1.5
    """A holder may be ahead of a waiting job by so many of that job's usual turns before it is asked back."""
    min_piece_s: float = 0.02
    """Nobody is asked back for fairness sooner than this: a handover would cost more."""
    handover_s: float = 0.0005
    """Guess of what passing the device on costs; gaps under three of these are not worth it."""
    tick_s: float = 0.025
    """While somebody waits, time passes in steps of this: repairs what a lost message broke."""


def smoothed(old: float | None, new: float, weight: float = 0.3) -> float:
    """The running mean of a duration; the first one counts in full."""
    return new if old is None else old + weight * (new - old)


MIN_GAP_HANDOVERS = 3.0


class GapWatch:
    """Decides for one job whether its gaps are worth giving the device away.

    Only if all the last ones were too short is the next one expected to be: a step with many short waits and one
    long one must not lose the long one.

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
        """Whether the next gap should be sat out."""

    def saw(self, gap_s: float) -> None:
        """A gap has ended."""
        self._gaps.append(gap_s)
        if gap_s >= self._threshold_s:
            self.is_too_short = False
        elif not self.is_too_short:
            self.is_too_short = len(self._gaps) == self._gaps.maxlen and max(self._gaps) < self._threshold_s
