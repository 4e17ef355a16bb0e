"""The results as a figure: the two jobs' timelines one above the other, and the times of every pair."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.figures import Document, head
from benchmarks.record import Row
from weft.sim.figure_style import ACTIVITIES, INK, PAIRS, WIDTH_IN, pyplot, save

WORDS = {"compute": "computes", "network": "waits for the network", "turn": "waits for its turn"}
BARS = (
    ("serial", "one after the other"),
    ("in_phase", "uncoordinated, in phase"),
    ("random_phase", "uncoordinated, random phase"),
    ("crossover", "crossover"),
)
CELLS = (("in_phase", "uncoordinated, started in phase"), ("crossover", "crossover"))
JOB_WORDS = {"plain": "all-reduce after backward", "ddp": "DDP", "overlap": "weft.overlap"}
PAIR_ORDER = ("equal", "unequal", "filler")
# A timeline of this many steps alone is long enough to see the pattern.
SHOWN_STEPS = 6.0


def draw(document: Document, path: Path) -> None:
    """Timelines above, bars below."""
    plt = pyplot()
    rows = sorted(document["rows"], key=_reading_order)
    timed = _with_timelines(rows)
    heights = [0.8] * (len(CELLS) if timed else 0) + [0.42 * max(len(rows), 3)]
    figure, axes = plt.subplots(
        len(heights),
        1,
        figsize=(WIDTH_IN, 1.15 * sum(heights) + 1.8),
        height_ratios=heights,
        squeeze=False,
        layout="constrained",
    )
    if timed:
        for (cell, title), axis in zip(CELLS, axes[:, 0], strict=False):
            _timelines(axis, timed, cell, title)
        marks = axes[len(CELLS) - 1, 0].get_legend_handles_labels()  # with crossover all three occur
        axes[0, 0].legend(*marks, ncols=3, loc="lower right", bbox_to_anchor=(1.0, 1.15))
        axes[len(CELLS) - 1, 0].set_xlabel("seconds")
    _bars(axes[-1, 0], rows)
    head(figure, "Two training jobs on the same two hosts", document)
    figure.legend(*axes[-1, 0].get_legend_handles_labels(), loc="outside lower center", ncols=5)
    save(figure, path)


def _reading_order(row: Row) -> tuple[int, int, float]:
    return PAIR_ORDER.index(row["pair"]), list(JOB_WORDS).index(row["job"]), row["network_over_compute"]


def _with_timelines(rows: Sequence[Row]) -> Row | None:
    """The pair whose waits are all visible: plain jobs, where the network matters most."""
    plain = [row for row in rows if row["job"] == "plain" and row["pair"] == "equal" and row["timelines"]]
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
                    color=ACTIVITIES[what],
                    label=None if what in seen else WORDS[what],
                )
                seen.add(what)
    step_s = row[f"{cell}_ms"] / 1e3
    axis.set_title(f"{title}: {step_s:.2f} s until both have finished a step (alone {row['alone_ms'] / 1e3:.2f} s)")
    axis.set_yticks([0, 1], ["job B", "job A"])
    axis.set_xlim(0, end_s)


def _bars(axis: Any, rows: Sequence[Row]) -> None:
    width = 0.8 / len(BARS)
    for index, (field, name) in enumerate(BARS):
        places = [place + (index - (len(BARS) - 1) / 2) * width for place in range(len(rows))]
        lengths = [row[f"{field}_ms"] / row["serial_ms"] for row in rows]
        axis.barh(places, lengths, width * 0.92, color=PAIRS[field], label=name)
        if field == "crossover":
            for place, row, length in zip(places, rows, lengths, strict=True):
                text = f"{row['serial_ms'] / row['crossover_ms']:.2f}x"
                axis.text(length + 0.01, place, text, va="center", fontsize=7.5, color=INK)
    for place, row in enumerate(rows):
        bound = row["bound_ms"] / row["serial_ms"]
        axis.vlines(bound, place - 0.42, place + 0.42, color=INK, linestyles=":", label="bound" if place == 0 else None)
    names = [
        f"{row['pair']}, {JOB_WORDS.get(row['job'], row['job'])}, n/c {row['network_over_compute']:.2f}" for row in rows
    ]
    axis.set_yticks(range(len(rows)), names)
    axis.set_ylim(len(rows) - 0.5, -0.5)
    axis.set_title("time for the same work; one after the other = 1 (number: crossover's gain over that)")
