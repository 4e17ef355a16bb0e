"""``weft wait``: wait for jobs to finish; the exit code reflects their outcome."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from weft.cli import render
from weft.cli.verb import Json, connect
from weft.core.command_line import Argument, Option
from weft.core.status_rows import FINAL_STATES, JobRow

JOB_FAILED = 5
JOB_CANCELLED = 6
TIMED_OUT = 7


def wait(
    job_ids: Annotated[list[str], Argument("ID", "jobs to wait for: an id, a prefix of one, or a name")],
    timeout_s: Annotated[float | None, Option("give up after this long", "never", min=0)] = None,
    as_json: Json = False,
) -> None:
    """Wait for all of these jobs to finish.

    Exit codes: 0 all completed; 5 a job failed; 6 a job was canceled and none failed; 7 timed out.
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
    """The worst outcome decides."""
    states = {row["state"] for row in rows}
    if "FAILED" in states:
        return JOB_FAILED
    if not states <= FINAL_STATES:
        return TIMED_OUT
    return JOB_CANCELLED if "CANCELLED" in states else 0
