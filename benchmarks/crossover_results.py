"""The results of one benchmark run on disk: JSON for machines, Markdown for people, whole after every row."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from benchmarks.crossover_rows import Row, ratio
from benchmarks.crossover_scenarios import Lone, Scenario
from benchmarks.overlap_results import headline
from weft.cli.bench_record import machine, markdown_table, write_whole
from weft.errors import InputError

TIMES = ("alone", "serial", "in_phase", "random_phase", "crossover", "bound")


@dataclass
class Results:
    """Rows of one run."""

    folder: Path
    started: datetime
    command: str
    rows: list[Row] = field(default_factory=list)
    lone: list[Row] = field(default_factory=list)
    """What sharing costs a job without another."""
    failures: list[str] = field(default_factory=list)

    @property
    def keys(self) -> set[str]:
        """Which scenarios have their row."""
        return {str(row["key"]) for row in (*self.rows, *self.lone)}

    def path(self, suffix: str) -> Path:
        return self.folder / f"crossover-{self.started:%Y-%m-%d-%H%M%S}.{suffix}"

    def add(self, scenario: Scenario, row: Row) -> None:
        self.rows.append({**row, "key": scenario.key})
        self.save()

    def add_lone(self, lone: Lone, row: Row) -> None:
        self.lone.append({**row, "key": lone.key})
        self.save()

    def save(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        content = {
            "date": self.started.isoformat(timespec="seconds"),
            "command": self.command,
            "machine": machine(),
            "rows": self.rows,
            "lone": self.lone,
            "failures": self.failures,
        }
        write_whole(self.path("json"), json.dumps(content, indent=None) + "\n")
        write_whole(self.path("md"), markdown(self))


def read_results(path: Path) -> Results:
    """A run that was stopped, to go on with the rows it lacks."""
    try:
        content = json.loads(path.read_text())
        started = datetime.fromisoformat(content["date"])
        return Results(path.parent, started, content["command"], content["rows"], content.get("lone", []))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"cannot be gone on with ({error}): give the JSON file of an earlier `weft bench crossover`", file=str(path)
        ) from error


def markdown(results: Results) -> str:
    """The tables, as they stand in the documentation."""
    lines = [
        "# Crossover benchmark",
        "",
        headline(results.command, results.started),
    ]
    if results.rows:
        lines += [
            "",
            "Two jobs of two workers each on two hosts of one core, joined by a shaped link. Milliseconds until both "
            "jobs have made one step (unequal pairs: their work counted in steps alone). `bound` is the most the "
            "device and the link at line rate allow.",
            "",
            *time_table(results.rows),
            "",
            "How many times as fast is crossover, and what each job pays (its step over its step alone).",
            "",
            *ratio_table(results.rows),
        ]
    fillers = [row for row in results.rows if row["pair"] == "filler"]
    if fillers:
        lines += ["", "Primary + filler; the filler has one worker per host and does not communicate.", ""]
        lines += filler_table(fillers)
    if results.lone:
        lines += ["", "A job without another: how much longer a step is with sharing switched on.", ""]
        lines += lone_table(results.lone)
    if results.failures:
        lines += ["", "Not measured:", "", *(f"- {failure.splitlines()[0]}" for failure in results.failures)]
    return "\n".join(lines) + "\n"


def time_table(rows: Sequence[Row]) -> list[str]:
    heads = ["pair", "job", "network/compute", *(name.replace("_", " ") for name in TIMES), "same losses as alone"]
    body = [
        [*_name(row), *(f"{row[f'{name}_ms']:.0f}" for name in TIMES), "yes" if row["loss_equal"] else "NO"]
        for row in rows
    ]
    return markdown_table(heads, body)


def ratio_table(rows: Sequence[Row]) -> list[str]:
    heads = ["pair", "job", "network/compute", "vs serial", "vs in phase", "vs random phase", "of bound"]
    heads += ["slowdown A", "slowdown B", "predicted", "pairing"]
    body = []
    for row in rows:
        cells = [*_name(row), *(_times(ratio(row, name)) for name in ("serial", "in_phase", "random_phase"))]
        cells += [_percent(ratio(row, "bound"))]
        cells += [f"{slowdown:.2f}" for slowdown in row["slowdown"]["crossover"]]
        cells += [_times(row["predicted_gain"]), "refuses" if row["refused"] else "pairs"]
        body.append(cells)
    return markdown_table(heads, body)


def filler_table(rows: Sequence[Row]) -> list[str]:
    heads = ["primary", "network/compute", "primary slowed", "left over by the primary", "filler got of that"]
    body = [
        [
            str(row["job"]),
            f"{row['network_over_compute']:.2f}",
            f"{100 * row['primary_slowed']:+.1f} %",
            _percent(row["left_over"]),
            _percent(row["filler_got"]),
        ]
        for row in rows
    ]
    return markdown_table(heads, body)


def lone_table(rows: Sequence[Row]) -> list[str]:
    heads = [
        "job",
        "step alone, ms",
        "longer by",
        "95 % interval",
        "pairs of blocks",
        "gate's own share",
        "same losses",
    ]
    body = [
        [
            str(row["job"]),
            f"{row['step_ms']:.0f}",
            f"{100 * row['overhead']:+.2f} %",
            f"{100 * row['low']:+.2f} to {100 * row['high']:+.2f} %",
            str(row["num_pairs"]),
            f"{100 * row['gate_share']:.2f} %",
            "yes" if row["loss_equal"] else "NO",
        ]
        for row in rows
    ]
    return markdown_table(heads, body)


def _name(row: Row) -> list[str]:
    return [str(row["pair"]), str(row["job"]), f"{row['network_over_compute']:.2f}"]


def _times(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}x"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.0f} %"
