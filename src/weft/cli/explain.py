"""``weft explain``: why a job has its current workers."""

from __future__ import annotations

from typing import Annotated

from weft.cli import render
from weft.cli.verb import Json, connect
from weft.core.command_line import Argument


def explain(
    job_id: Annotated[str, Argument("ID", "a job: its id, a prefix of it, or its name")], as_json: Json = False
) -> None:
    """Show what happened to a job and why, oldest first. The last line describes the present."""
    client = connect()
    sentences = client.explain(job_id)
    if as_json:
        render.print_json({"id": client.job(job_id)["id"], "sentences": sentences})
        return
    for row in sentences:
        render.print_text(f"{render.moment(row['time_s'])}  {render.plain(row['sentence'])}", indent=2)
