"""The results of one benchmark run on disk: JSON for machines, Markdown for people, whole at any moment."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from benchmarks.overlap_rows import Row, speedup
from benchmarks.overlap_scenarios import SWEEP_CONTENDERS
from weft.cli.bench_record import machine, markdown_table, write_whole

COLUMNS = (
    *(
        "alone_ms",
        "ddp_ms",
        "ddp_best_ms",
        "fsdp2_ms",
        "fsdp2_async_ms",
        "dear_ms",
        "weft_ms",
        "weft_eager_ms",
    ),
    *("bound_ms", "eager_bound_ms"),
)
SWEEP_COLUMNS = (*(f"{name}_ms" for name in SWEEP_CONTENDERS), "weft_ms")
GROWTH_COLUMNS = ("alone_ms", "ddp_ms", "ddp_1mb_ms", "ddp_best_ms", "weft_1mb_ms", "weft_25mb_ms", "weft_ms")


@dataclass
class Results:
    """Rows of one run; written again after each, so that a crash loses nothing."""

    folder: Path
    started: datetime
    command: str
    rows: list[Row] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def path(self, suffix: str) -> Path:
        return self.folder / f"overlap-{self.started:%Y-%m-%d-%H%M%S}.{suffix}"

    def save(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        content = {
            "date": self.started.isoformat(timespec="seconds"),
            "command": self.command,
            "machine": machine(),
            "rows": self.rows,
            "failures": self.failures,
        }
        write_whole(self.path("json"), json.dumps(content, indent=1) + "\n")
        write_whole(self.path("md"), markdown(self))


def headline(command: str, started: datetime) -> str:
    """How, when and where a run was made."""
    about = machine()
    return (
        f"`{command}`, {started:%Y-%m-%d %H:%M}, "
        f"{about['cores']} cores ({about['cpu']}), {about['system']}, Python {about['python']}."
    )


def markdown(results: Results) -> str:
    """The tables, as they stand in the documentation."""
    compared = [row for row in results.rows if "weft_4mb_ms" not in row]
    lines = [
        "# Overlap benchmark",
        "",
        headline(results.command, results.started),
        "",
        "Median milliseconds per step, all contenders interleaved in the same worker processes, the slowest "
        "rank counting. "
        "`bound` is the best a schedule with a barrier can do, `eager bound` the best without.",
        "",
        *_table(compared, COLUMNS),
        "",
        "Speed of weft as a ratio within a row (above 1: weft is faster), and the share of the bounds.",
        "",
        *_ratio_table(compared),
    ]
    swept = [row for row in results.rows if "weft_4mb_ms" in row]
    if swept:
        lines += ["", "The tuned plan against buckets of one size.", "", *_table(swept, SWEEP_COLUMNS)]
    growth = [row for row in results.rows if "ddp_1mb_ms" in row]
    if growth:
        lines += [
            "",
            "Growth with workers, emulated compute, by bucket size.",
            "",
            *_table(growth, GROWTH_COLUMNS),
        ]
    lines += ["", "Bytes and memory per worker.", "", *_byte_table(results.rows)]
    if results.failures:
        lines += ["", "Not measured:", "", *(f"- {failure.splitlines()[0]}" for failure in results.failures)]
    return "\n".join(lines) + "\n"


def _table(rows: Sequence[Row], columns: Sequence[str]) -> list[str]:
    heads = [
        "model",
        "hosts",
        "network/compute",
        *(column.removesuffix("_ms").replace("_", " ") for column in columns),
    ]
    body = [[*_name(row), *(_number(row.get(column), 0) for column in columns)] for row in rows]
    return markdown_table(heads, body)


def _ratio_table(rows: Sequence[Row]) -> list[str]:
    rivals = ("ddp", "ddp_best", "fsdp2", "fsdp2_async", "dear")
    heads = ["model", "hosts", "network/compute", *(f"vs {rival.replace('_', ' ')}" for rival in rivals)]
    heads += ["eager vs weft", "of bound", "eager: of its bound", "same losses as DDP"]
    body = []
    for row in rows:
        cells = [*_name(row), *(_number(speedup(row, rival, "weft"), 2) for rival in rivals)]
        cells += [_number(speedup(row, "weft", "weft_eager"), 2)]
        cells += [
            _percent(speedup(row, "bound", "weft")),
            _percent(speedup(row, "eager_bound", "weft_eager")),
        ]
        cells += [{True: "yes", False: "no", None: "-"}[row.get("loss_equal")]]
        body.append(cells)
    return markdown_table(heads, body)


def _byte_table(rows: Sequence[Row]) -> list[str]:
    heads = ["model", "hosts", "network/compute"]
    heads += ["wire MB/step DDP", "weft", "state MB DDP", "weft", "peak MB DDP", "weft"]
    body = []
    for row in rows:
        cells = _name(row)
        for key in ("wire_bytes_per_step", "state_bytes", "peak_bytes"):
            cells += [_megabytes(row.get(key, {}).get(name)) for name in ("ddp", "weft")]
        body.append(cells)
    return markdown_table(heads, body)


def _name(row: Row) -> list[str]:
    label = f"{row['model']} (emulated compute)" if row["emulated_compute"] else str(row["model"])
    return [label, str(row["hosts"]), f"{row['network_over_compute']:.2f}"]


def _number(value: float | None, num_digits: int) -> str:
    return "-" if value is None else f"{value:.{num_digits}f}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.0f} %"


def _megabytes(value: int | None) -> str:
    return "-" if value is None else f"{value / 1e6:.1f}"
