"""The results as a picture: step time by ratio with the bound, speed-ups, and the growth with workers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from textwrap import fill
from typing import Any

from benchmarks.overlap_rows import Row, speedup
from weft.errors import MissingToolError

# (field, name, colour, line style); weft in one strong hue, rivals in quiet ones, limits grey.
LINES = (
    ("fsdp2", "FSDP2", "#b8a5d0", "-"),
    ("ddp", "DDP", "#d98c3f", "-"),
    ("ddp_best", "DDP, best bucket", "#e8bd7a", "-"),
    ("dear", "DeAR, 25 MB", "#6fa58b", "-"),
    ("weft", "weft", "#1f5fbf", "-"),
    ("weft_eager", "weft eager", "#0f2f66", "--"),
    ("bound", "bound with barrier", "#777777", ":"),
    ("alone", "alone, no network", "#bbbbbb", ":"),
)
RIVALS = (
    ("ddp", "vs DDP", "#d98c3f"),
    ("ddp_best", "vs DDP, best bucket", "#e8bd7a"),
    ("dear", "vs DeAR", "#6fa58b"),
)
BUCKETS = (
    ("ddp", "DDP, 25 MB", "#d98c3f"),
    ("ddp_1mb", "DDP, 1 MB", "#e8bd7a"),
    ("weft_25mb", "weft, 25 MB", "#a9c4ec"),
    ("weft_1mb", "weft, 1 MB", "#6a97d8"),
    ("weft", "weft, tuned", "#1f5fbf"),
)


def draw(rows: Sequence[Row], path: Path, caption: str) -> None:
    """Write the picture; panels for which nothing was measured are left out."""
    try:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot
    except ImportError:
        raise MissingToolError(
            "matplotlib is not installed, so the results get no picture: pip install 'weft[plot]'"
        ) from None
    real = [row for row in rows if not row["emulated_compute"] and "weft_4mb_ms" not in row]
    models = list(dict.fromkeys(row["model"] for row in real))
    growth = sorted((row for row in rows if row["emulated_compute"]), key=lambda row: row["hosts"])
    num_columns = max(1, len(models) + bool(growth))
    figure, axes = pyplot.subplots(
        2, num_columns, figsize=(4.6 * num_columns, 7.6), squeeze=False, layout="constrained"
    )
    for column, model in enumerate(models):
        own = sorted((row for row in real if row["model"] == model), key=lambda row: row["network_over_compute"])
        _step_times(axes[0][column], own, f"{model}, 2 hosts")
        _speedups(axes[1][column], own, [f"{row['network_over_compute']:.2f}" for row in own], "network / compute")
    if growth:
        hosts = [str(row["hosts"]) for row in growth]
        _growth(axes[0][-1], growth, hosts)
        _speedups(axes[1][-1], growth, hosts, "hosts")
    figure.suptitle("A step of data-parallel training on a shaped link", fontsize=13)
    width = int(figure.get_figwidth() * 14)
    figure.supxlabel(fill(caption, width), fontsize=7.5, color="#666666")
    aside = path.with_suffix(".part.png")
    figure.savefig(aside, dpi=140)
    pyplot.close(figure)
    aside.replace(path)


def _step_times(axis: Any, rows: Sequence[Row], title: str) -> None:
    for field, name, colour, style in LINES:
        points = [(row["network_over_compute"], row[f"{field}_ms"]) for row in rows if row.get(f"{field}_ms")]
        if points:
            axis.plot(
                *zip(*points, strict=True),
                style,
                color=colour,
                label=name,
                marker="" if style == ":" else "o",
                markersize=4,
                linewidth=2.2 if "weft" in field else 1.5,
            )
    _dress(axis, title, "network / compute", "ms per step")
    axis.set_ylim(bottom=0)
    axis.legend(fontsize=7.5, frameon=False)


def _speedups(axis: Any, rows: Sequence[Row], labels: Sequence[str], xlabel: str) -> None:
    rivals = [rival for rival in RIVALS if any(speedup(row, rival[0], "weft") for row in rows)]
    width = 0.8 / max(len(rivals), 1)
    for index, (rival, name, colour) in enumerate(rivals):
        heights = [speedup(row, rival, "weft") or 0.0 for row in rows]
        places = [place + (index - (len(rivals) - 1) / 2) * width for place in range(len(rows))]
        bars = axis.bar(places, heights, width * 0.92, color=colour, label=name)
        axis.bar_label(bars, labels=[f"{height:.2f}" if height else "" for height in heights], fontsize=6.5)
    axis.axhline(1.0, color="#777777", linewidth=0.8)
    axis.set_xticks(range(len(rows)), labels)
    _dress(axis, "how many times as fast is weft?", xlabel, "ratio of step times")
    axis.margins(y=0.28)
    axis.legend(fontsize=7.5, frameon=False, ncols=max(len(rivals), 1), loc="upper center", columnspacing=0.9)


def _growth(axis: Any, rows: Sequence[Row], hosts: Sequence[str]) -> None:
    shown = [bucket for bucket in BUCKETS if any(row.get(f"{bucket[0]}_ms") for row in rows)]
    width = 0.8 / max(1, len(shown))
    for index, (field, name, colour) in enumerate(shown):
        places = [place + (index - (len(shown) - 1) / 2) * width for place in range(len(rows))]
        axis.bar(places, [row.get(f"{field}_ms") or 0.0 for row in rows], width * 0.92, color=colour, label=name)
    for place, row in enumerate(rows):
        label = "bound with barrier" if place == 0 else None
        axis.hlines(row["bound_ms"], place - 0.45, place + 0.45, color="#444444", linestyles=":", label=label)
    axis.set_xticks(range(len(rows)), hosts)
    _dress(axis, "emulated compute, network / compute = 1", "hosts", "ms per step")
    axis.margins(y=0.3)
    axis.legend(fontsize=7.5, frameon=False, ncols=2, loc="upper center")


def _dress(axis: Any, title: str, xlabel: str, ylabel: str) -> None:
    axis.set_title(title, fontsize=10.5)
    axis.set_xlabel(xlabel, fontsize=9)
    axis.set_ylabel(ylabel, fontsize=9)
    axis.tick_params(labelsize=8)
    axis.spines[["top", "right"]].set_visible(False)
