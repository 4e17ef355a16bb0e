"""The controller's clock: wall-clock seconds that never run backward."""

from __future__ import annotations

import time
from collections.abc import Callable


class SteadyClock:
    """Starts at the wall clock, or at the last recorded time if that is later, and then only moves forward.

    If the wall clock is set back an hour while the controller runs, durations measured on this clock stay correct, and
    events stay in the order in which they happened.  The next controller starts at the wall clock again: see
    ``recovery.MAX_AHEAD_S``.
    """

    def __init__(
        self,
        not_before_s: float = 0.0,
        wall: Callable[[], float] = time.time,
        steady: Callable[[], float] = lambda: time.clock_gettime(time.CLOCK_BOOTTIME),
    ) -> None:
        self._steady = steady
        self._steady_start_s = steady()
        self._start_s = max(wall(), not_before_s)

    def now_s(self) -> float:
        """Seconds since the epoch."""
        return self._start_s + self._steady() - self._steady_start_s
