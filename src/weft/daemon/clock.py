"""The controller's clock: wall-clock seconds that never run backwards."""

from __future__ import annotations

import time
from collections.abc import Callable


class SteadyClock:
    """Starts at the wall clock, or at the last time that was written down if that is later, and then only runs on.

    The wall clock may be set back an hour while the controller runs: durations measured on this clock stay right, and
    the order of events stays the order in which they happened.  The next controller starts with the wall clock again:
    see ``recovery.MAX_AHEAD_S``.
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
        """Seconds since the epoch, as far as this controller can tell."""
        return self._start_s + self._steady() - self._steady_start_s
