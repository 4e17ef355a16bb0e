"""Jobs as a table in a notebook.  Everything that a user chose, such as a name, is escaped."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from weft.core.status_rows import JobRow, workers_of_range

_HEADINGS = ("id", "name", "state", "workers", "step", "waited", "ran", "reason")
_NUM_SHOWN = 100


def jobs_html(rows: Sequence[JobRow]) -> str:
    """An HTML table of the last jobs; plain elements, no script, no style sheet."""
    head = "".join(f"<th>{heading}</th>" for heading in _HEADINGS)
    body = "".join(
        f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in _cells(row))}</tr>" for row in rows[-_NUM_SHOWN:]
    )
    more = f"<p>{len(rows) - _NUM_SHOWN} older jobs are not shown</p>" if len(rows) > _NUM_SHOWN else ""
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}"


def _cells(row: JobRow) -> tuple[str, ...]:
    total = row["total_steps"]
    return (
        row["id"],
        row["name"],
        row["state"],
        workers_of_range(row),
        f"{row['step']}/{total}" if total else str(row["step"]),
        f"{row['waited_s']:.0f} s",
        f"{row['ran_s']:.0f} s",
        f"{row['reason_code']}: {row['reason']}" if row["reason_code"] else row["reason"],
    )
