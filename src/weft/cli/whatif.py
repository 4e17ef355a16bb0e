"""``weft whatif``: forecast the current queue, with and without a change."""

from __future__ import annotations

from typing import Annotated, Any

from weft.cli import render
from weft.cli.status import MAX_NAME, shortened
from weft.cli.verb import Json, connect
from weft.core.cluster import MAX_FORECAST_DEVICES
from weft.core.command_line import Option
from weft.core.plural import plural
from weft.core.status_rows import PlanJobRow, PlanRow
from weft.core.submission import MAX_WEIGHT, worker_range
from weft.errors import UsageError


def whatif(
    policy: Annotated[str | None, Option("a different policy", "the controller's")] = None,
    devices: Annotated[
        int | None, Option("a different number of devices", "those of the cluster", min=1, max=MAX_FORECAST_DEVICES)
    ] = None,
    job: Annotated[str | None, Option("a job to change; needs --weight or --workers", "none", metavar="ID")] = None,
    weight: Annotated[float | None, Option("the job's weight", "unchanged", min=1 / MAX_WEIGHT, max=MAX_WEIGHT)] = None,
    workers: Annotated[str | None, Option("the job's number of workers", "unchanged", metavar="MIN[:MAX]")] = None,
    as_json: Json = False,
) -> None:
    """Forecast when the running and waiting jobs would finish, with and without a change. Nothing is changed.

    The forecast comes from the simulator, with the progress and speeds the controller knows. Prints its assumptions.
    """
    changes: dict[str, Any] = {} if weight is None else {"weight": weight}
    if workers is not None:
        changes["min_workers"], changes["max_workers"] = worker_range(workers)
    if changes and job is None:
        raise UsageError("--weight and --workers change one job: name it with --job ID")
    if job is not None and not changes:
        raise UsageError("--job needs a change to that job: add --weight X or --workers MIN:MAX")
    question: dict[str, Any] = {"jobs": {job: changes}} if job is not None else {}
    question |= {name: value for name, value in (("policy", policy), ("devices", devices)) if value is not None}
    answer = connect().whatif(question)
    if as_json:
        render.print_json(answer)
        return
    plan, other = answer["plan"], answer["whatif"]
    now = {row["id"]: row for row in plan["jobs"]}
    then = {row["id"]: row for row in other["jobs"]}
    cells = [
        (
            job_id,
            shortened(render.plain(row["name"]), MAX_NAME),
            _end(now.get(job_id)),
            _end(then.get(job_id)),
            _sizes(then[job_id]) if job_id in then else "",
        )
        for job_id, row in {**now, **then}.items()
    ]
    if cells:
        render.print_columns(cells, ("ID", "NAME", "ENDS IN", "WHAT IF", "WORKERS"), [""] * len(cells))
    for title, one in (("current", plan), ("what if", other)):
        render.print_text(f"{title}: {_summary(one)}", indent=2)
    for sentence in answer["assumptions"]:
        render.print_text(f"- {render.plain(sentence)}", indent=2)


def _summary(plan: PlanRow) -> str:
    where = f"{plan['policy']} on {plural(plan['devices'], 'device')}"
    if plan["mean_jct_s"] is None or plan["makespan_s"] is None:
        return f"{where}: no job is running or waiting"
    mean, last = render.duration(plan["mean_jct_s"]), render.duration(plan["makespan_s"])
    return f"{where}: all done in {last}, mean completion time since submission {mean}"


def _end(row: PlanJobRow | None) -> str:
    """When the job ends; one that its user's quota keeps waiting is not in the forecast."""
    return "-" if row is None else render.duration(row["end_s"])


def _sizes(row: PlanJobRow) -> str:
    return " ".join(str(int(workers)) for _, workers in row["workers"])
