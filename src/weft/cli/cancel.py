"""``weft cancel``: stop jobs for good."""

from __future__ import annotations

from typing import Annotated

from weft.cli import render
from weft.cli.verb import Argument, Json, Option, Verb, connect
from weft.core.status_rows import FINAL_STATES


def cancel(
    job_ids: Annotated[list[str], Argument("ID", help="the jobs to stop")],
    wait: Annotated[bool, Option(help="return when their last worker is gone")] = False,
    as_json: Json = False,
) -> None:
    """Stop these jobs for good. Workers get time to save; asked a second time, they are killed at once.

    Nothing happens to a job that is over.
    """
    client = connect()
    # All ids are looked up before anything is stopped: a typing error must not leave half of it done.
    for job_id in job_ids:
        client.job(job_id)
    rows = [client.cancel(job_id) for job_id in job_ids]
    if wait:
        client.wait(job_ids)
        rows = [client.job(job_id) for job_id in job_ids]
    if as_json:
        render.print_json({"jobs": rows})
        return
    for row in rows:
        is_over = row["state"] in FINAL_STATES
        print(f"{row['id']} {row['state']}{'' if is_over else ', its workers are leaving'}")


app = Verb(cancel)
