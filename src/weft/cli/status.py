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
from weft.core.status_rows import FINAL_STATES, JobRow, workers_of_range

CLEAR_SCREEN = "\x1b[H\x1b[2J"
HEADINGS = ("ID", "NAME", "STATE", "WORKERS", "STEP", "RESTARTS", "WAITED", "RAN", "REASON")
NARROW_HEADINGS = ("ID", "NAME", "STATE", "WORKERS", "STEP", "WAITED", "RAN", "REASON")
STYLES = {"RUNNING": "green", "STOPPING": "yellow", "FAILED": "red", "CANCELLED": "dim", "COMPLETED": "dim"}
MAX_NAME = 24
MAX_NARROW_NAME = 10
MIN_REASON = 40
"""Columns that a sentence needs; if fewer are left, its code is shown instead."""


def status(
    job_ids: Annotated[list[str] | None, Argument("ID", "only these jobs: an id, a prefix of one, or a name")] = None,
    active: Annotated[bool, Option("only jobs that have not finished")] = False,
    watch: Annotated[bool, Option("refresh until Ctrl-C", short="-w")] = False,
    interval_s: Annotated[float, Option("with --watch: time between refreshes", min=0.1)] = 2.0,
    as_json: Json = False,
) -> None:
    """List jobs in order of submission: state, workers (and the allowed range), steps, restarts, times, and the reason.

    WAITED and RAN add up to the time from submission until the job finished, or until now. On a narrow terminal the
    reason is a short code; `weft explain ID` says more.
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
    """The requested rows, by id, prefix of an id, or name."""
    if job_ids:
        from weft.core.job_choice import matching_id  # not for the whole list

        by_id = {row["id"]: row for row in rows}
        rows = [by_id[job_id] for job_id in dict.fromkeys(matching_id(rows, word) for word in job_ids)]
    return [row for row in rows if not (active and row["state"] in FINAL_STATES)]


def _show(rows: list[JobRow], *, as_json: bool, watch: bool) -> None:
    if as_json and watch:
        print(json.dumps({"jobs": rows}), flush=True)
    elif as_json:
        render.print_json({"jobs": rows})
    else:
        if watch and sys.stdout.isatty():
            sys.stdout.write(CLEAR_SCREEN)
        print_jobs(rows, time.time(), render.terminal_width())
        sys.stdout.flush()


def print_jobs(jobs: Sequence[JobRow], now_s: float, width: int | None = None) -> None:
    """Print a line per job, for a terminal of ``width`` columns; None for no limit."""
    if not jobs:
        print("no jobs: submit one with `weft submit -- python train.py`")
        return
    styles = [STYLES.get(job["state"], "") for job in jobs]
    headings: Sequence[str] = HEADINGS
    rows: list[Sequence[str]] = [cells(job, now_s) for job in jobs]
    if width is not None and render.columns_width(rows, headings) + MIN_REASON > width:
        headings, rows = NARROW_HEADINGS, [narrow_cells(job) for job in jobs]
    render.print_columns(rows, headings, styles)


def cells(job: JobRow, now_s: float) -> tuple[str, ...]:
    """One job under :data:`HEADINGS`."""
    return (
        job["id"],
        shortened(render.plain(job["name"]), MAX_NAME),
        job["state"],
        workers_of_range(job),
        steps(job),
        str(job["restarts"]),
        render.duration(job["waited_s"]),
        render.duration(job["ran_s"]),
        in_queue(job, now_s) + render.plain(job["reason"]),
    )


def narrow_cells(job: JobRow) -> tuple[str, ...]:
    """One job under :data:`NARROW_HEADINGS`: at most 64 columns before the reason, however long the job's numbers."""
    total = job["total_steps"]
    return (
        job["id"],
        shortened(render.plain(job["name"]), MAX_NARROW_NAME),
        job["state"],
        workers_of_range(job).replace(" of ", "/"),
        f"{100 * min(job['step'] / total, 1.0):.0f} %" if total else short_number(job["step"]),
        short_duration(job["waited_s"]),
        short_duration(job["ran_s"]),
        job["reason_code"] or render.plain(job["reason"]),
    )


def short_duration(seconds: float) -> str:
    """At most four characters.

    >>> [short_duration(seconds) for seconds in (42, 754, 7512, 200_000, 1e9)]
    ['42s', '13m', '2.1h', '2.3d', '>99d']
    """
    for limit, unit, letter, digits in (
        (100, 1, "s", 0),
        (5970, 60, "m", 0),
        (35_900, 3600, "h", 1),
        (172_800, 3600, "h", 0),
        (860_000, 86400, "d", 1),
        (8_500_000, 86400, "d", 0),
    ):
        if seconds < limit:
            return f"{seconds / unit:.{digits}f}{letter}"
    return ">99d"


def short_number(number: int) -> str:
    """At most five characters.

    >>> [short_number(number) for number in (0, 640, 51_200, 3_100_000)]
    ['-', '640', '51200', '3.1M']
    """
    for limit, unit, letter in ((100_000, 1, ""), (1_000_000, 1000, "k"), (10**9, 10**6, "M"), (10**12, 10**9, "G")):
        if number < limit:
            return (f"{number / unit:.4g}{letter}" if unit > 1 else str(number)) if number else "-"
    return ">1T"


def in_queue(job: JobRow, now_s: float) -> str:
    """Where a waiting job stands: ``number 2 in the queue, starts in about 5 min: ``."""
    if job["queue_position"] is None:
        return ""
    place = f"number {job['queue_position']} in the queue"
    if job["expected_start_s"] is not None:
        place += f", starts in about {render.duration(max(job['expected_start_s'] - now_s, 0.0))}"
    return f"{place}: "


def steps(job: JobRow) -> str:
    if job["total_steps"]:
        return f"{job['step']}/{job['total_steps']}"
    return str(job["step"]) if job["step"] else "-"


def shortened(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"
