"""``weft status``: the jobs, one per line."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from typing import Annotated

from weft.cli import render
from weft.cli.verb import Json, connect
from weft.core.command_line import Argument, Option
from weft.core.nearest_name import unknown_name
from weft.core.status_rows import FINAL_STATES, JobRow
from weft.errors import UsageError

CLEAR_SCREEN = "\x1b[H\x1b[2J"
HEADINGS = ("ID", "NAME", "STATE", "WORKERS", "STEP", "RESTARTS", "TIME", "REASON")
STYLES = {"RUNNING": "green", "STOPPING": "yellow", "FAILED": "red", "CANCELLED": "dim", "COMPLETED": "dim"}
MAX_NAME = 24


def status(
    job_ids: Annotated[list[str] | None, Argument("ID", "only these jobs")] = None,
    active: Annotated[bool, Option("only jobs that have not finished")] = False,
    watch: Annotated[bool, Option("refresh until Ctrl-C", short="-w")] = False,
    interval_s: Annotated[float, Option("with --watch: time between refreshes", min=0.1)] = 2.0,
    as_json: Json = False,
) -> None:
    """List jobs in order of submission: state, workers (and the allowed range), steps, restarts, and the reason.

    TIME runs from submission until the job finished, or until now.
    """
    client = connect()
    while True:
        rows = chosen(client.jobs(), job_ids or [], active=active)
        _show(rows, as_json=as_json, watch=watch)
        for words in client.health().get("warnings", []):
            render.note(words)
        if not watch:
            return
        time.sleep(interval_s)


def chosen(rows: list[JobRow], job_ids: list[str], *, active: bool) -> list[JobRow]:
    """The requested rows; an unknown id is an error that suggests the closest one."""
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
        print_jobs(rows, time.time())
        sys.stdout.flush()


def print_jobs(jobs: Sequence[JobRow], now_s: float) -> None:
    if not jobs:
        print("no jobs: submit one with `weft submit -- python train.py`")
        return
    render.print_columns([cells(job, now_s) for job in jobs], HEADINGS, [STYLES.get(job["state"], "") for job in jobs])


def cells(job: JobRow, now_s: float) -> tuple[str, ...]:
    """One job under :data:`HEADINGS`."""
    return (
        job["id"],
        shortened(render.plain(job["name"]), MAX_NAME),
        job["state"],
        workers(job),
        steps(job),
        str(job["restarts"]),
        render.duration(lasted_s(job, now_s)),
        in_queue(job, now_s) + render.plain(job["reason"]),
    )


def in_queue(job: JobRow, now_s: float) -> str:
    """Where a waiting job stands: ``number 2 in the queue, starts in about 5 min: ``."""
    if job["queue_position"] is None:
        return ""
    place = f"number {job['queue_position']} in the queue"
    if job["expected_start_s"] is not None:
        place += f", starts in about {render.duration(max(job['expected_start_s'] - now_s, 0.0))}"
    return f"{place}: "


def workers(job: JobRow) -> str:
    """How many it has, and the allowed range: ``2 of 1-4``."""
    low, high = job["min_workers"], job["max_workers"]
    return f"{job['workers']} of {low}" if low == high else f"{job['workers']} of {low}-{high}"


def steps(job: JobRow) -> str:
    if job["total_steps"]:
        return f"{job['step']}/{job['total_steps']}"
    return str(job["step"]) if job["step"] else "-"


def lasted_s(job: JobRow, now_s: float) -> float:
    """From submission until it finished, or until now."""
    end_s = now_s if job["finished_s"] is None else job["finished_s"]
    return max(end_s - job["submitted_s"], 0.0)


def shortened(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"
