"""Durations as people type them: ``30d``, ``12h``, ``90m``, ``45s``.  A number without a unit is rejected."""

from __future__ import annotations

import re

from weft.errors import UsageError

_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_MAX_S = 100 * 366 * 86400


def parse_duration_s(text: str, what: str) -> float:
    """Seconds; raises :class:`UsageError` naming ``what`` for anything that is not exactly a duration.

    >>> parse_duration_s("30d", "--keep"), parse_duration_s("1.5h", "--keep")
    (2592000.0, 5400.0)
    """
    found = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,3})?)([smhdw])", text, flags=re.ASCII)
    seconds = float(found[1]) * _UNITS_S[found[2]] if found else 0.0
    if not 0 < seconds <= _MAX_S:
        raise UsageError(
            f"{what} {text[:40]!r}: expected more than 0 and at most 100 years, such as 30d, 12h, 90m, or 45s"
        )
    return seconds
