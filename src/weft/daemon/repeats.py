"""A log that cannot be flooded: the same warning is written a few times, then counted."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

MAX_REPEATS = 5
WINDOW_S = 60.0
_MAX_KINDS = 1000


class Repeats(logging.Filter):
    """Passes :data:`MAX_REPEATS` warnings or errors of a kind per :data:`WINDOW_S`; the next one says how many were
    left out.  A kind is a logger and a template, whatever is filled in."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._now = now
        self._kinds: dict[tuple[str, str], tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.WARNING:
            return True
        kind = record.name, str(record.msg)
        now_s = self._now()
        since_s, num = self._kinds.get(kind, (now_s, 0))
        num_left_out = 0
        if now_s - since_s >= WINDOW_S:
            num_left_out, since_s, num = max(num - MAX_REPEATS, 0), now_s, 0
        if len(self._kinds) >= _MAX_KINDS:
            self._kinds.clear()
        self._kinds[kind] = since_s, num + 1
        if num >= MAX_REPEATS:
            return False
        if num_left_out:
            record.msg, record.args = f"{record.getMessage()} (and {num_left_out} more like this before)", ()
        return True
