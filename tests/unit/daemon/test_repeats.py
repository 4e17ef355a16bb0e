"""A log that any job could fill would fill the disk."""

from __future__ import annotations

import logging

from weft.daemon.faults import MAX_REPEATS, WINDOW_S, Repeats


def record(message: str, *args: object, level: int = logging.WARNING) -> logging.LogRecord:
    return logging.LogRecord("somebody", level, __file__, 1, message, args, None)


def test_a_repeated_warning_is_logged_a_few_times_and_counted() -> None:
    now_s = 0.0
    repeats = Repeats(lambda: now_s)
    passed = [repeats.filter(record("connection %d refused", number)) for number in range(1000)]
    assert sum(passed) == MAX_REPEATS
    assert repeats.filter(record("another message"))
    now_s = WINDOW_S
    later = record("connection %d refused", 7)
    assert repeats.filter(later)
    assert later.getMessage() == f"connection 7 refused (and {1000 - MAX_REPEATS} more like this before)"


def test_messages_below_warning_are_always_logged() -> None:
    repeats = Repeats(lambda: 0.0)
    assert all(repeats.filter(record("job %d started", n, level=logging.INFO)) for n in range(100))
