"""``weft top``: the cluster on one live screen."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

from weft.cli import render, status
from weft.cli.verb import Json, connect
from weft.core.command_line import Option
from weft.core.status_rows import FINAL_STATES, HealthRow, JobDetail, NodeRow, OverviewRow
from weft.errors import UsageError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from weft.client import Client

HEADINGS = ("ID", "NAME", "STATE", "WORKERS", "PROGRESS", "STEP", "S/STEP", "WAITS", "LOSS", "REASON")
NARROW_HEADINGS = ("ID", "NAME", "STATE", "WORKERS", "STEP", "S/STEP", "LOSS", "REASON")
BAR_WIDTH = 16
# The last finished jobs stay visible, so that their outcome can be seen.
NUM_FINISHED = 5
# Totals, devices, an empty line, headings, and the footer.
OTHER_LINES = 6
MIN_JOBS = 10


def top(
    interval_s: Annotated[float, Option("time between refreshes", min=0.1)] = 1.0,
    once: Annotated[bool, Option("print one screen and exit")] = False,
    as_json: Json = False,
) -> None:
    """Show devices and jobs live until Ctrl-C. WAITS is the share of a step spent waiting for the network."""
    client = connect()
    if as_json:
        render.print_json({"nodes": client.nodes(), "jobs": client.job_details()})
        return
    if once:
        render.print_renderable(_look(client))
        return
    if not sys.stdout.isatty():
        raise UsageError("weft top needs a terminal, and stdout is not one: use `weft top --once` or `weft status`")
    with render.live() as show:
        while True:
            show(_look(client))
            time.sleep(interval_s)


def _look(client: Client) -> RenderableType:
    """As many jobs as fit on the screen: a queue of thousands costs no more than a short one."""
    room = max(shutil.get_terminal_size().lines - OTHER_LINES, MIN_JOBS)
    return screen(client.health(), client.nodes(), client.overview(room), time.time(), render.terminal_width())


def screen(
    health: HealthRow, nodes: list[NodeRow], overview: OverviewRow, now_s: float, width: int | None = None
) -> RenderableType:
    """Totals, devices, and jobs, for a terminal of ``width`` columns; None for no limit."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    jobs, counts = overview["jobs"], overview["counts"]
    active = [job for job in jobs if job["state"] not in FINAL_STATES]
    over = [job for job in jobs if job["state"] in FINAL_STATES]
    shown = active + over[:NUM_FINISHED][::-1]
    table = Table(box=None, pad_edge=False, header_style="bold", expand=True)
    headings: Sequence[str] = HEADINGS
    rows: list[Sequence[str]] = [_cells(job, now_s) for job in shown]
    if width is not None and render.columns_width(rows, headings) + status.MIN_REASON > width:
        headings, rows = NARROW_HEADINGS, [_narrow_cells(job) for job in shown]
    for heading in headings:
        table.add_column(heading, no_wrap=True, overflow="ellipsis", ratio=1 if heading == "REASON" else None)
    for job, row in zip(shown, rows, strict=True):
        # Text, not markup: a name may contain anything.
        table.add_row(*map(Text, row), style=status.STYLES.get(job["state"], ""))
    hidden = sum(counts.values()) - len(shown)
    hidden_active = sum(num for state, num in counts.items() if state not in FINAL_STATES) - len(active)
    more = f"{hidden_active} more unfinished" if hidden_active else f"{hidden} more finished"
    footer = Text(f"{more}: `weft status`" if hidden else "", style="dim")
    return Group(Text(totals(health, nodes, counts), style="bold"), Text(device_line(nodes)), Text(""), table, footer)


def totals(health: HealthRow, nodes: list[NodeRow], counts: Mapping[str, int]) -> str:
    """The first line."""
    devices = [device for node in nodes if node["up"] for device in node["devices"]]
    busy = sum(bool(device["jobs"]) for device in devices)
    states = ", ".join(f"{num} {state.lower()}" for state, num in sorted(counts.items())) or "no jobs"
    return f"weft {health['version']}  policy {health['policy']}  devices {busy}/{len(devices)} busy  {states}"


def device_line(nodes: list[NodeRow]) -> str:
    """The jobs on each device; a node that is down is in parentheses."""
    parts = []
    for node in nodes:
        held = " ".join("+".join(device["jobs"]) or "·" for device in node["devices"])
        name = render.plain(node["name"])
        parts.append(f"{name}: {held}" if node["up"] else f"({name} is down)")
    return "   ".join(parts)


def _cells(job: JobDetail, now_s: float) -> tuple[str, ...]:
    job_id, name, state, workers, step, _, _, ran, reason = status.cells(job, now_s)
    step_s = job["step_s"]
    waits = render.percent(min(job["exposed_s"] / step_s, 1.0)) if step_s else "-"
    return (job_id, name, state, workers, bar(job) or ran, step, *_speed(job, waits), reason)


def _narrow_cells(job: JobDetail) -> tuple[str, ...]:
    job_id, name, state, workers, step, _, _, reason = status.narrow_cells(job)
    return (job_id, name, state, workers, step, *_speed(job), reason)


def _speed(job: JobDetail, *between: str) -> tuple[str, ...]:
    step_s, loss = job["step_s"], job["loss"]
    return (f"{step_s:.3g}" if step_s else "-", *between, "-" if loss is None else f"{loss:.4g}")


def bar(job: JobDetail) -> str:
    """Progress; empty if the number of steps is unknown."""
    if not job["total_steps"]:
        return ""
    filled = int(BAR_WIDTH * min(job["step"] / job["total_steps"], 1.0))
    return "█" * filled + "░" * (BAR_WIDTH - filled)
