"""A timed device that several jobs may use: one at a time, however many processes ask.

A real device runs one kernel after the other.  Sleeping does not, so a file lock stands for the device: two jobs that
share it without taking turns wait for each other layer by layer.
"""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

from benchmarks.timed_device import TimedDevice


class SharedTimedDevice(TimedDevice):
    """Like :class:`TimedDevice`, for all processes that name the same file."""

    def __init__(self, lock: Path) -> None:
        super().__init__()
        self.busy_s = 0.0
        self._lock = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def occupy(self, duration_s: float) -> None:
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        try:
            began_s = time.perf_counter()
            super().occupy(duration_s)
            self.busy_s += time.perf_counter() - began_s
        finally:
            fcntl.flock(self._lock, fcntl.LOCK_UN)
