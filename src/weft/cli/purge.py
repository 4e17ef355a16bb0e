"""``weft purge``: delete finished jobs with their logs and checkpoints."""

from __future__ import annotations

from typing import Annotated

from weft.cli import render
from weft.cli.verb import Json, connect
from weft.core.command_line import Option
from weft.core.duration import parse_duration_s
from weft.core.plural import plural
from weft.daemon.disk import in_units


def purge(
    older_than: Annotated[
        str, Option("delete only jobs that finished longer ago than this, such as 12h or 7d", metavar="DURATION")
    ] = "30d",
    dry_run: Annotated[bool, Option("list what would be deleted, but delete nothing")] = False,
    as_json: Json = False,
) -> None:
    """Delete finished jobs with their logs and checkpoints, and compact the journal.

    Pending and running jobs are never touched.
    """
    done = connect().purge(parse_duration_s(older_than, "--older-than"), dry_run=dry_run)
    if as_json:
        render.print_json(done)
        return
    for job_id in done["jobs"]:
        print(job_id)
    word = "would be deleted" if dry_run else "deleted"
    render.note(f"{plural(len(done['jobs']), 'job')} {word}, {in_units(done['freed_bytes'])}")
    for problem in done["problems"]:
        render.note(problem)
