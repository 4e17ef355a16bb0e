"""What ``weft demo`` shows while it runs: a live chart on a terminal, otherwise one line per change."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from weft.core.status_rows import JobDetail
from weft.demo.contest import OnLook

COLORS = ("cyan", "magenta", "green", "yellow", "blue", "red", "bright_cyan", "bright_magenta")
COLUMNS_PER_S = 2
BAR_WIDTH = 24


@contextmanager
def screen(title: str, num_devices: int) -> Iterator[OnLook]:
    """Shows each snapshot of the jobs until the block ends."""
    console = Console(stderr=True)
    if not (console.is_terminal and sys.stderr.isatty()):
        yield _DemoLines(console).look
        return
    chart = _Chart(title, num_devices)
    with Live(console=console, refresh_per_second=8) as live:

        def look(now_s: float, rows: Sequence[JobDetail]) -> None:
            live.update(chart.drawn(now_s, rows))

        yield look


class _DemoLines:
    """One line whenever a job's state or devices change."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._seen: dict[str, tuple[str, tuple[int, ...]]] = {}

    def look(self, now_s: float, rows: Sequence[JobDetail]) -> None:
        for row in rows:
            now = row["state"], tuple(row["devices"])
            if self._seen.get(row["id"]) != now:
                self._seen[row["id"]] = now
                where = f"on device {', '.join(map(str, now[1]))}" if now[1] else ""
                self._console.print(
                    f"{now_s:5.1f} s  {row['name']:<8} {now[0]:<9} {where}", markup=False, highlight=False
                )


class _Chart:
    """Jobs as progress bars, and below them the history of each device."""

    def __init__(self, title: str, num_devices: int) -> None:
        self._title = title
        self._lanes: list[list[str | None]] = [[] for _ in range(num_devices)]
        self._color: dict[str, str] = {}

    def drawn(self, now_s: float, rows: Sequence[JobDetail]) -> Group:
        for row in rows:
            self._color.setdefault(row["name"], COLORS[len(self._color) % len(COLORS)])
        self._record(now_s, rows)
        return Group(Text(f"{self._title}, {now_s:.0f} s", style="bold"), self._jobs(rows), *self._history())

    def _record(self, now_s: float, rows: Sequence[JobDetail]) -> None:
        holder = {device: row["name"] for row in rows for device in row["devices"]}
        for device, lane in enumerate(self._lanes):
            while len(lane) <= int(now_s * COLUMNS_PER_S):
                lane.append(holder.get(device))

    def _jobs(self, rows: Sequence[JobDetail]) -> Table:
        table = Table.grid(padding=(0, 2))
        for row in rows:
            total = row["total_steps"] or 1
            filled = BAR_WIDTH * (total if row["state"] == "COMPLETED" else min(row["step"], total)) // total
            bar = Text("━" * filled, style=self._color[row["name"]])
            bar.append("━" * (BAR_WIDTH - filled), style="bright_black")
            workers = "■" * row["workers"] if row["workers"] else ""
            table.add_row(
                row["name"], bar, Text(row["state"], style="dim"), Text(workers, style=self._color[row["name"]])
            )
        return table

    def _history(self) -> list[Text]:
        lines = []
        for device, lane in enumerate(self._lanes):
            line = Text(f"device {device}  ", style="dim")
            for name in lane[-80:]:
                line.append("█" if name else "·", style=self._color.get(name or "", "bright_black"))
            lines.append(line)
        return lines
