"""The figure of the scale benchmark: what the controller uses and how long it makes people wait, by size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.figures import Document, head
from weft.sim.figure_style import BLUE, INK, WIDTH_IN, pyplot, save

AXES = ("num_workers", "num_nodes", "num_jobs")
MEASURES = (("cores", "cores", 1.0, 1.0), ("p99_s", "status, p99, ms", 500.0, 1e3))


def draw(document: Document, path: Path) -> None:
    """One column for each number that grows, one row for each measure, with its limit."""
    plt = pyplot()
    figure, grid = plt.subplots(len(MEASURES), len(AXES), figsize=(WIDTH_IN, 4.2), layout="constrained", sharey="row")
    for column, growing in enumerate(AXES):
        rows = _sweep(document["rows"], growing)
        for line, (field, label, limit, factor) in enumerate(MEASURES):
            axis = grid[line][column]
            axis.plot([row[growing] for row in rows], [factor * row[field] for row in rows], "o-", color=BLUE)
            axis.axhline(limit, color=INK, linestyle="--", linewidth=1)
            axis.set_xscale("log")
            axis.set_yscale("log")
            axis.set_xticks([row[growing] for row in rows], [f"{row[growing]:,}" for row in rows], fontsize=7.5)
            axis.minorticks_off()
            if column == 0:
                axis.set_ylabel(label)
            if line == len(MEASURES) - 1:
                axis.set_xlabel(growing.removeprefix("num_"))
    head(figure, "One controller on simulated nodes; dashed: the limit", document)
    save(figure, path)


def _sweep(rows: list[dict[str, Any]], growing: str) -> list[dict[str, Any]]:
    """The rows where only this number differs from the middle; workers bring their jobs with them."""
    middle = next(
        (row for row in rows if (row["num_nodes"], row["num_workers"], row["num_jobs"]) == (200, 2000, 250)), rows[0]
    )
    if growing == "num_workers":
        chosen = [row for row in rows if row["num_nodes"] == middle["num_nodes"] and _is_full(row)]
    else:
        same = [name for name in AXES if name != growing]
        chosen = [row for row in rows if all(row[name] == middle[name] for name in same)]
    return sorted(chosen, key=lambda row: int(row[growing]))


def _is_full(row: dict[str, Any]) -> bool:
    return bool(row["num_jobs"] * 8 == row["num_workers"])
