"""``weft status``: the jobs, one a line."""

from __future__ import annotations

import json
import sys
import time
from typing import Annotated

from weft.cli import job_table, render
from weft.cli.verb import Argument, Json, Option, Verb, connect
from weft.core.nearest_name import unknown_name
from weft.core.status_rows import FINAL_STATES, JobRow
from weft.errors import UsageError

CLEAR_SCREEN = "\x1b[H\x1b[2J"


def status(
    job_ids: Annotated[list[str] | None, Argument("ID", help="only these jobs")] = None,
    active: Annotated[bool, Option(help="only jobs that are not over")] = False,
    watch: Annotated[bool, Option(help="again and again, until Ctrl-C", short="-w")] = False,
    interval_s: Annotated[float, Option(min=0.1, help="with --watch: seconds between looks")] = 2.0,
    as_json: Json = False,
) -> None:
    """The jobs in order of submission: state, workers (and how many it may have), steps, restarts, and why.

    TIME is from submission to the end, or until now.
    """
    client = connect()
    while True:
        rows = chosen(client.jobs(), job_ids or [], active=active)
        _show(rows, as_json=as_json, watch=watch)
        if not watch:
            return
        time.sleep(interval_s)


def chosen(rows: list[JobRow], job_ids: list[str], *, active: bool) -> list[JobRow]:
    """The rows asked for; an id that is not there is an error that offers the nearest."""
    by_id = {row["id"]: row for row in rows}
    for job_id in job_ids:
        if job_id not in by_id:
            near = unknown_name("job", job_id, by_id) if 0 < len(by_id) <= 10_000 else f"there is no job {job_id!r}"
            raise UsageError(near.partition(": expected one of")[0])
    found = [by_id[job_id] for job_id in dict.fromkeys(job_ids)] if job_ids else rows
    return [row for row in found if not (active and row["state"] in FINAL_STATES)]


def _show(rows: list[JobRow], *, as_json: bool, watch: bool) -> None:
    if as_json and watch:
        print(json.dumps({"jobs": rows}), flush=True)
    elif as_json:
        render.print_json({"jobs": rows})
    else:
        if watch and sys.stdout.isatty():
            sys.stdout.write(CLEAR_SCREEN)
        job_table.print_jobs(rows, time.time())
        sys.stdout.flush()


app = Verb(status)
