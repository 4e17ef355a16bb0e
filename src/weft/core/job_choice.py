"""Finds the job that a user names by its id, a prefix of its id, or its name."""

from __future__ import annotations

from collections.abc import Sequence

from weft.core.nearest_name import unknown_name
from weft.core.status_rows import JobRow
from weft.errors import UsageError

_NUM_LISTED = 10
_MAX_COMPARED = 10_000
"""With more jobs than this, looking for a similar name would take too long."""


def matching_id(rows: Sequence[JobRow], word: str) -> str:
    """The id of the only job with this id or name, or else of the only one whose id starts with it."""
    if any(row["id"] == word for row in rows):
        return word
    found = [row for row in rows if row["name"] == word] or [row for row in rows if word and row["id"].startswith(word)]
    if len(found) == 1:
        return found[0]["id"]
    if not found:
        raise UsageError(_unknown(rows, word))
    listed = ", ".join(f"{row['id']} ({row['name']}, {row['state']})" for row in found[-_NUM_LISTED:])
    more = f", and {len(found) - _NUM_LISTED} older ones" if len(found) > _NUM_LISTED else ""
    raise UsageError(f"{word!r} could be any of {len(found)} jobs: give the id of one of {listed}{more}")


def _unknown(rows: Sequence[JobRow], word: str) -> str:
    known = {row["id"] for row in rows} | {row["name"] for row in rows}
    if not 0 < len(known) <= _MAX_COMPARED:
        return f"there is no job {word!r}: `weft status` lists all jobs"
    message, _, listed = unknown_name("job", word, known).partition(": expected one of")
    return f"{message}: `weft status` lists all jobs" if listed else message
