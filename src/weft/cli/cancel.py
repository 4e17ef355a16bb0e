"""``weft cancel``: cancel jobs."""

from __future__ import annotations

from typing import Annotated

from weft.cli import render
from weft.cli.verb import Json, connect
from weft.core.command_line import Argument, Option
from weft.core.status_rows import FINAL_STATES


def cancel(
    job_ids: Annotated[list[str], Argument("ID", "jobs to cancel: an id, a prefix of one, or a name")],
    wait: Annotated[bool, Option("return only after the last worker has exited")] = False,
    as_json: Json = False,
) -> None:
    """Cancel jobs. Workers get time to save a checkpoint; cancel a job a second time to kill them immediately.

    Jobs that have already finished are left unchanged.
    """
    client = connect()
    # Look up all jobs before canceling any, so that a typo cancels nothing.
    job_ids = client.ids(job_ids)
    rows = [client.cancel(job_id) for job_id in job_ids]
    if wait:
        client.wait(job_ids)
        rows = [client.job(job_id) for job_id in job_ids]
    if as_json:
        render.print_json({"jobs": rows})
        return
    for row in rows:
        is_over = row["state"] in FINAL_STATES
        print(f"{row['id']} {row['state']}{'' if is_over else ', its workers are stopping'}")
