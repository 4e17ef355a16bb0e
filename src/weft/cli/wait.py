"""``weft wait``: until jobs are over, then their fate as exit code."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from weft.cli import render
from weft.cli.verb import Argument, Json, Option, Verb, connect
from weft.core.status_rows import FINAL_STATES, JobRow

JOB_FAILED = 5
JOB_CANCELLED = 6
TIME_IS_UP = 7


def wait(
    job_ids: Annotated[list[str], Argument("ID", help="the jobs to wait for")],
    timeout_s: Annotated[float | None, Option(min=0, help="give up after so many seconds")] = None,
    as_json: Json = False,
) -> None:
    """Wait until all of these jobs are over.

    Exit codes: 0 all completed; 5 one failed; 6 one was cancelled and none failed; 7 the time was up before.
    """
    rows = connect().wait(job_ids, timeout_s)
    if as_json:
        render.print_json({"jobs": rows})
    else:
        for row in rows:
            if row["state"] != "COMPLETED":
                render.note(f"{row['id']} {row['state']}: {render.plain(row['reason'])}")
    raise SystemExit(exit_code(rows))


def exit_code(rows: Sequence[JobRow]) -> int:
    """What became of them, the worst first."""
    states = {row["state"] for row in rows}
    if "FAILED" in states:
        return JOB_FAILED
    if not states <= FINAL_STATES:
        return TIME_IS_UP
    return JOB_CANCELLED if "CANCELLED" in states else 0


app = Verb(wait)
