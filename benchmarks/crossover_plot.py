"""The results as a picture: the two jobs' timelines one above the other, and the times of every pair."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.crossover_rows import Row
from weft.errors import MissingToolError

COLOURS = {"compute": "#1f5fbf", "network": "#9ec5a3", "turn": "#f3d9b1"}
WORDS = {"compute": "computes", "network": "waits for the network", "turn": "waits for its turn"}
BARS = (
    ("serial", "one after the other", "#bbbbbb"),
    ("in_phase", "uncoordinated, in phase", "#d98c3f"),
    ("random_phase", "uncoordinated, random phase", "#e8bd7a"),
    ("crossover", "crossover", "#1f5fbf"),
)
CELLS = (("in_phase", "uncoordinated, started in phase"), ("crossover", "crossover"))
# A timeline of this many steps alone is long enough to see the pattern.
SHOWN_STEPS = 6.0


def draw(rows: Sequence[Row], path: Path, caption: str) -> None:
    """Write the picture."""
    try:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot
    except ImportError:
        raise MissingToolError(
            "matplotlib is not installed, so the results get no picture: pip install 'weft[plot]'"
        ) from None
    timed = _with_timelines(rows)
    heights = [1.0] * (len(CELLS) if timed else 0) + [2.6]
    figure, axes = pyplot.subplots(
        len(heights), 1, figsize=(11, 2.0 * sum(heights)), height_ratios=heights, squeeze=False, layout="constrained"
    )
    if timed:
        for (cell, title), axis in zip(CELLS, axes[:, 0], strict=False):
            _timelines(axis, timed, cell, title)
        marks = axes[len(CELLS) - 1, 0].get_legend_handles_labels()  # in crossover all three are to be seen
        axes[0, 0].legend(*marks, ncols=3, fontsize=8, frameon=False, loc="lower right", bbox_to_anchor=(1.0, 1.0))
        axes[len(CELLS) - 1, 0].set_xlabel("seconds", fontsize=9)
    _bars(axes[-1, 0], rows)
    figure.suptitle("Two training jobs on the same two hosts", fontsize=13)
    figure.supxlabel(caption, fontsize=7.5, color="#666666")
    aside = path.with_suffix(".part.png")
    figure.savefig(aside, dpi=140)
    pyplot.close(figure)
    aside.replace(path)


def _with_timelines(rows: Sequence[Row]) -> Row | None:
    """The pair whose waits are all seen: plain jobs, where the network matters most."""
    plain = [row for row in rows if row["job"] == "plain" and row["pair"] == "equal"]
    return max(plain, key=lambda row: float(row["network_over_compute"]), default=None)


def _timelines(axis: Any, row: Row, cell: str, title: str) -> None:
    end_s = SHOWN_STEPS * row["alone_ms"] / 1e3
    seen: set[str] = set()
    for place, (_, spans) in enumerate(sorted(row["timelines"][cell].items(), reverse=True)):
        for what, begin_ms, stop_ms in spans:
            if begin_ms / 1e3 < end_s:
                axis.barh(
                    place,
                    (stop_ms - begin_ms) / 1e3,
                    left=begin_ms / 1e3,
                    height=0.8,
                    color=COLOURS[what],
                    label=None if what in seen else WORDS[what],
                )
                seen.add(what)
    step_s = row[f"{cell}_ms"] / 1e3
    axis.set_title(
        f"{title}: {step_s:.2f} s until both have made a step (alone {row['alone_ms'] / 1e3:.2f} s)",
        loc="left",
        fontsize=10,
    )
    axis.set_yticks([0, 1], ["job B", "job A"])
    axis.set_xlim(0, end_s)
    axis.tick_params(labelsize=8)
    axis.spines[["top", "right"]].set_visible(False)


def _bars(axis: Any, rows: Sequence[Row]) -> None:
    width = 0.8 / len(BARS)
    for index, (field, name, colour) in enumerate(BARS):
        places = [place + (index - (len(BARS) - 1) / 2) * width for place in range(len(rows))]
        heights = [row[f"{field}_ms"] / row["serial_ms"] for row in rows]
        bars = axis.bar(places, heights, width * 0.92, color=colour, label=name)
        if field == "crossover":
            labels = [f"{row['serial_ms'] / row['crossover_ms']:.2f}x" for row in rows]
            axis.bar_label(bars, labels=labels, fontsize=7.5, padding=1)
    for place, row in enumerate(rows):
        label = "bound" if place == 0 else None
        bound = row["bound_ms"] / row["serial_ms"]
        axis.hlines(bound, place - 0.45, place + 0.45, color="#222222", linestyles=":", label=label)
    names = [f"{row['pair']}\n{row['job']}\n{row['network_over_compute']:.2f}" for row in rows]
    axis.set_xticks(range(len(rows)), names, fontsize=8)
    axis.set_title("time for the same work; one after the other = 1", loc="left", fontsize=10)
    axis.tick_params(labelsize=8)
    axis.margins(y=0.25)
    axis.legend(ncols=5, fontsize=8, frameon=False, loc="upper center")
    axis.spines[["top", "right"]].set_visible(False)
