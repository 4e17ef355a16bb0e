"""``weft explain``: why a job has the workers it has."""

from __future__ import annotations

import time
from typing import Annotated

from weft.cli import render
from weft.cli.verb import Argument, Json, Verb, connect


def explain(
    job_id: Annotated[str, Argument("ID", help="a job")],
    as_json: Json = False,
) -> None:
    """What happened to a job and why, oldest first; the last line is about now."""
    sentences = connect().explain(job_id)
    if as_json:
        render.print_json({"id": job_id, "sentences": sentences})
        return
    for row in sentences:
        print(f"{moment(row['time_s'])}  {render.plain(row['sentence'])}")


def moment(time_s: float) -> str:
    """Local time of day, with the date where it is another day."""
    then, now = time.localtime(time_s), time.localtime()
    return time.strftime("%H:%M:%S" if then[:3] == now[:3] else "%Y-%m-%d %H:%M:%S", then)


app = Verb(explain)
