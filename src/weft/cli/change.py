"""``weft change``: change the weight, priority, or number of workers of a job."""

from __future__ import annotations

from typing import Annotated

from weft.cli import render
from weft.cli.verb import Json, connect
from weft.core.command_line import Argument, Option
from weft.core.plural import plural
from weft.core.submission import MAX_PRIORITY, MAX_WEIGHT, worker_range
from weft.errors import UsageError


def change(
    job_id: Annotated[str, Argument("ID", "a pending or running job: its id, a prefix of it, or its name")],
    weight: Annotated[
        float | None,
        Option("share of the cluster relative to other jobs", "unchanged", min=1 / MAX_WEIGHT, max=MAX_WEIGHT),
    ] = None,
    priority: Annotated[
        int | None,
        Option("jobs with a higher priority are served first", "unchanged", min=-MAX_PRIORITY, max=MAX_PRIORITY),
    ] = None,
    workers: Annotated[str | None, Option("number of workers", "unchanged", metavar="MIN[:MAX]")] = None,
    as_json: Json = False,
) -> None:
    """Change a job's weight, priority, or number of workers. The next decision takes it into account.

    A running job whose current number of workers is no longer allowed saves a checkpoint and restarts with one that is.
    """
    values: dict[str, float] = {}
    if weight is not None:
        values["weight"] = weight
    if priority is not None:
        values["priority"] = priority
    if workers is not None:
        values["min_workers"], values["max_workers"] = worker_range(workers)
    if not values:
        raise UsageError("nothing to change: give --weight, --priority, or --workers")
    row = connect().change(job_id, **values)
    if as_json:
        render.print_json({"jobs": [row]})
        return
    low, high = row["min_workers"], row["max_workers"]
    sizes = plural(low, "worker") if low == high else f"{low}-{high} workers"
    render.print_text(f"{row['id']} weight {row['weight']:g}, priority {row['priority']}, {sizes}")
