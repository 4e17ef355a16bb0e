"""Reads JSON without trusting it: it may be nested too deeply, have too many digits, or have values of another type."""

from __future__ import annotations

import json
import math
from typing import Any

MAX_COUNT = 2**53


def parse_object(data: bytes) -> dict[str, Any] | None:
    """The JSON object in ``data``; ``None`` for anything else.

    >>> parse_object(b'{"a": 1}'), parse_object(b"[" * 60_000), parse_object(b"9" * 5_000), parse_object(b"\\xff")
    ({'a': 1}, None, None, None)
    """
    try:
        message = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return message if isinstance(message, dict) else None


def count(value: object) -> int | None:
    """A whole number that is not negative and exact as a float; otherwise ``None``.

    >>> count(3), count(-1), count(True), count(10**400)
    (3, None, None, None)
    """
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < MAX_COUNT else None


def real(value: object) -> float | None:
    """A finite number; otherwise ``None``.

    >>> real(3), real(float("nan")), real(10**400), real("3")
    (3.0, None, None, None)
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def text(value: object, max_length: int) -> str | None:
    """Text that can be encoded and is at most this long; otherwise ``None``.

    >>> text("a", 5), text("abcdef", 5), text("\\ud800", 5)
    ('a', None, None)
    """
    if not isinstance(value, str) or len(value) > max_length:
        return None
    try:
        value.encode()
    except UnicodeEncodeError:
        return None
    return value
