"""The results as a figure: how much faster weft is than each peer, step times with the bound, and more hosts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.figures import Document, head
from benchmarks.overlap_results import reading_order, real_rows
from benchmarks.overlap_rows import MAX_ERROR, best_of, error_of, predicted_names, speedup
from benchmarks.record import Row
from weft.sim.figure_style import CONTENDERS, INK, QUIET, WIDTH_IN, legend_below, pyplot, save

# (contender, name, line style); limits are dotted.
LINES = (
    ("ddp", "DDP, default", "-"),
    ("best DDP", "DDP, best", "-"),
    ("best FSDP2", "FSDP2, best", "-"),
    ("dear", "DeAR", "-"),
    ("weft", "weft", "-"),
    ("weft_eager", "weft eager", "--"),
    ("bound", "bound", ":"),
    ("alone", "alone", ":"),
)
COLORS = {**CONTENDERS, "best DDP": CONTENDERS["ddp_best"], "best FSDP2": CONTENDERS["fsdp2"]}
NUM_LEGEND_COLUMNS = 4
NAMES = {"ddp": "DDP", "ddp_best": "DDP, best", "dear": "DeAR"}


def draw(document: Document, path: Path) -> None:
    """Step times above, speedups below, one column per model; panels without rows are left out."""
    plt = pyplot()
    rows: Sequence[Row] = document["rows"]
    real = real_rows(rows)
    models = list(dict.fromkeys(row["model"] for row in real))
    emulated = sorted((row for row in rows if row["emulated_compute"]), key=reading_order)
    num_columns = max(1, len(models) + bool(emulated))
    size = (WIDTH_IN, 6.2)
    figure, axes = plt.subplots(2, num_columns, figsize=size, squeeze=False, layout="constrained", sharey="row")
    for column, model in enumerate(models):
        own = sorted((row for row in real if row["model"] == model), key=lambda row: float(row["network_over_compute"]))
        places = [row["network_over_compute"] for row in own]
        _step_times(axes[0][column], own, places, "network / compute", f"{model}, 2 hosts")
        _speedups(axes[1][column], own, places, "network / compute")
        for axis in axes[:, column]:
            axis.set_xlim(0, max([*places, 2.3]) * 1.06)
    if emulated:
        hosts = list(range(len(emulated)))
        names = [_layout(row) for row in emulated]
        _step_times(axes[0][-1], emulated, hosts, "hosts (x workers)", "emulated compute")
        _speedups(axes[1][-1], emulated, hosts, "hosts")
        for axis in axes[:, -1]:
            axis.set_xticks(hosts, names)
            axis.set_xlim(-0.4, len(hosts) - 0.6)
    axes[0][0].set_ylabel("step / step alone")
    axes[1][0].set_ylabel("weft is faster by (95 %)")
    axes[0][0].set_ylim(0, 1.03 * max(max(line.get_ydata()) for axis in axes[0] for line in axis.get_lines()))
    head(figure, "A training step over a slow link: lower is better above, higher is better below", document)
    legend_below(figure, list(axes.flat), NUM_LEGEND_COLUMNS)
    save(figure, path)


def draw_profiles(document: Document, path: Path) -> None:
    """One line per row: how many times as fast weft is as DDP at its best, and how far off predictions are."""
    plt = pyplot()
    rows: Sequence[Row] = document["rows"]
    size = (WIDTH_IN, 0.24 * len(rows) + 1.9)
    figure, (axis, errors) = plt.subplots(1, 2, figsize=size, layout="constrained", sharey=True)
    for place, row in enumerate(rows):
        best, said = best_of(row, "DDP"), row["predicted_ms"]
        ratio = None if best is None else speedup(row, best, "weft")
        label = place == 0
        if ratio is not None:
            axis.plot([ratio.low, min(ratio.high, 3.0)], [place, place], color=COLORS["weft"], linewidth=1.6)
            axis.plot(ratio.value, place, "o", color=COLORS["weft"], label="measured, 95 %" if label else None)
        if said.get("ddp_best") and said.get("weft"):
            words = "predicted" if label else None
            axis.plot(said["ddp_best"] / said["weft"], place, "D", color=COLORS["best DDP"], markersize=5, label=words)
    axis.axvline(1.0, color=INK, linewidth=0.8)
    axis.set_yticks(range(len(rows)), [f"{row['model']}, {_layout(row)} hosts" for row in rows])
    axis.set_ylim(len(rows) - 0.5, -0.5)
    axis.xaxis.set_major_formatter(lambda value, _: f"{value:g}x")
    axis.grid(axis="x", alpha=0.25, color=QUIET)
    axis.set_xlabel("how many times as fast is weft as DDP at its best")
    _errors(errors, rows)
    head(figure, "Popular models, emulated compute, network / compute = 1", document)
    legend_below(figure, [axis, errors], NUM_LEGEND_COLUMNS)
    save(figure, path)


def _errors(axis: Any, rows: Sequence[Row]) -> None:
    """Predicted over measured steps, and the tenth that is the target."""
    axis.axvspan(-MAX_ERROR, MAX_ERROR, color=QUIET, alpha=0.2, linewidth=0)
    for name in predicted_names(rows):
        points = [(error, place) for place, row in enumerate(rows) if (error := error_of(row, name)) is not None]
        words = f"predicted {NAMES.get(name, name)}"
        axis.plot(*zip(*points, strict=True), "o", color=COLORS.get(name, INK), markersize=4, label=words)
    axis.axvline(0.0, color=INK, linewidth=0.8)
    axis.xaxis.set_major_formatter(lambda value, _: f"{100 * value:+.0f} %")
    axis.grid(axis="x", alpha=0.25, color=QUIET)
    axis.set_xlabel("predicted step over measured step")


def _layout(row: Row) -> str:
    hosts, workers = row["hosts"], row["workers_per_host"]
    return str(hosts) if workers == 1 else f"{hosts}x{workers}"


def _time_ms(row: Row, name: str) -> float | None:
    if name.startswith("best "):
        best = best_of(row, name.removeprefix("best "))
        return None if best is None else row[f"{best}_ms"]
    return row.get(f"{name}_ms")


def _step_times(axis: Any, rows: Sequence[Row], places: Sequence[float], xlabel: str, title: str) -> None:
    for name, words, style in LINES:
        points = [
            (place, time_ms / row["alone_ms"])
            for place, row in zip(places, rows, strict=True)
            if (time_ms := _time_ms(row, name)) is not None
        ]
        if points:
            axis.plot(
                [place for place, _ in points],
                [share for _, share in points],
                style,
                color=COLORS[name],
                label=words,
                marker="" if style == ":" else "o",
                markersize=4,
                linewidth=2.4 if name.startswith("weft") else 1.5,
            )
    axis.set_title(title)
    axis.set_xlabel(xlabel)
    axis.grid(axis="y", alpha=0.25)


def _speedups(axis: Any, rows: Sequence[Row], places: Sequence[float], xlabel: str) -> None:
    """Only the main comparisons: default DDP, DDP at its best, and DeAR."""
    span = (max(places) - min(places)) if len(places) > 1 else 1.0
    for number, name in enumerate(("ddp", "best DDP", "dear")):
        for place, row in zip(places, rows, strict=True):
            rival = best_of(row, "DDP") if name == "best DDP" else name
            ratio = None if rival is None else speedup(row, rival, "weft")
            if ratio is None:
                continue
            at = place + (number - 1) * 0.03 * span
            high = min(ratio.high, 3.0)
            axis.plot([at, at], [max(ratio.low, 0.0), high], color=COLORS[name], linewidth=1.4, alpha=0.8)
            axis.plot(at, ratio.value, "o", color=COLORS[name], markersize=5)
    axis.axhline(1.0, color=INK, linewidth=0.8)
    axis.set_xlabel(xlabel)
    axis.set_ylim(0.6, 2.0)
    axis.yaxis.set_major_formatter(lambda value, _: f"{value:.1f}x")
    axis.grid(axis="y", alpha=0.25, color=QUIET)
