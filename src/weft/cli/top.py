"""``weft top``: the cluster on one screen, live."""

from __future__ import annotations

import sys
import time
from collections import Counter
from typing import TYPE_CHECKING, Annotated

from weft.cli import job_table, render
from weft.cli.verb import Json, Option, Verb, connect
from weft.core.status_rows import FINAL_STATES, HealthRow, JobDetail, NodeRow
from weft.errors import UsageError

if TYPE_CHECKING:
    from rich.console import RenderableType

HEADINGS = ("ID", "NAME", "STATE", "WORKERS", "PROGRESS", "STEP", "S/STEP", "WAITS", "LOSS", "REASON")
BAR_WIDTH = 16
# Finished jobs stay in sight for a while, so that one sees what became of them.
KEPT_FINISHED = 5


def top(
    interval_s: Annotated[float, Option(min=0.1, help="seconds between looks")] = 1.0,
    once: Annotated[bool, Option(help="one picture, then leave")] = False,
    as_json: Json = False,
) -> None:
    """Devices and jobs, live, until Ctrl-C. WAITS is the share of a step spent waiting for the network."""
    client = connect()
    if as_json:
        render.print_json({"nodes": client.nodes(), "jobs": client.job_details()})
        return
    if once:
        render.print_renderable(screen(client.health(), client.nodes(), client.job_details(), time.time()))
        return
    if not sys.stdout.isatty():
        raise UsageError("top draws on a terminal and stdout is none: use `weft top --once`, or `weft status`")
    with render.live() as show:
        while True:
            show(screen(client.health(), client.nodes(), client.job_details(), time.time()))
            time.sleep(interval_s)


def screen(health: HealthRow, nodes: list[NodeRow], jobs: list[JobDetail], now_s: float) -> RenderableType:
    """What is shown: totals, devices, jobs."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    over = [job for job in jobs if job["state"] in FINAL_STATES]
    shown = [job for job in jobs if job["state"] not in FINAL_STATES] + over[-KEPT_FINISHED:]
    table = Table(box=None, pad_edge=False, header_style="bold", expand=True)
    for heading in HEADINGS:
        table.add_column(heading, no_wrap=True, overflow="ellipsis", ratio=1 if heading == "REASON" else None)
    for job in shown:
        # Text, not markup: a name may hold anything.
        table.add_row(*map(Text, _cells(job, now_s)), style=job_table.STYLES.get(job["state"], ""))
    hidden = len(jobs) - len(shown)
    footer = Text(f"{hidden} more that are over: `weft status`" if hidden else "", style="dim")
    return Group(Text(totals(health, nodes, jobs), style="bold"), Text(device_line(nodes)), Text(""), table, footer)


def totals(health: HealthRow, nodes: list[NodeRow], jobs: list[JobDetail]) -> str:
    """The first line."""
    devices = [device for node in nodes if node["up"] for device in node["devices"]]
    busy = sum(bool(device["jobs"]) for device in devices)
    states = Counter(job["state"] for job in jobs)
    counts = ", ".join(f"{num} {state.lower()}" for state, num in sorted(states.items())) or "no jobs"
    return f"weft {health['version']}  policy {health['policy']}  devices {busy}/{len(devices)} busy  {counts}"


def device_line(nodes: list[NodeRow]) -> str:
    """Who has which device; a node that is down in brackets."""
    parts = []
    for node in nodes:
        held = " ".join("+".join(device["jobs"]) or "·" for device in node["devices"])
        name = render.plain(node["name"])
        parts.append(f"{name}: {held}" if node["up"] else f"({name} is down)")
    return "   ".join(parts)


def _cells(job: JobDetail, now_s: float) -> tuple[str, ...]:
    job_id, name, state, workers, step, _, lasted, reason = job_table.cells(job, now_s)
    step_s = job["step_s"]
    return (
        job_id,
        name,
        state,
        workers,
        bar(job) or lasted,
        step,
        f"{step_s:.3g}" if step_s else "-",
        render.percent(min(job["exposed_s"] / step_s, 1.0)) if step_s else "-",
        "-" if job["loss"] is None else f"{job['loss']:.4g}",
        reason,
    )


def bar(job: JobDetail) -> str:
    """How far it is; empty where nobody knows."""
    if not job["total_steps"]:
        return ""
    filled = int(BAR_WIDTH * min(job["step"] / job["total_steps"], 1.0))
    return "█" * filled + "░" * (BAR_WIDTH - filled)


app = Verb(top)
