"""Draw layers.png: what weft weaves inside a job, between jobs and across the cluster.  A sketch, not a measurement.

Run from the root: python docs/img/draw_layers.py
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes

from weft.sim.figure_style import JOBS, PHASES, WIDTH_IN, pyplot, save

Bar = tuple[float, float, float, float, str, str]  # left, width, row, height, color, label

FORWARD, BACKWARD, REDUCE, GATHER = (PHASES[name] for name in ("forward", "backward", "reduce-scatter", "all-gather"))
LENGTH = 12.0


def inside_a_job() -> list[Bar]:
    """Compute above, network below: reduce-scatter under backward, all-gather under the next forward."""
    bars: list[Bar] = []
    for start in (0.0, 6.0):
        bars.append((start, 2.0, 1, 0.8, FORWARD, "forward"))
        bars.append((start + 2.0, 4.0, 1, 0.8, BACKWARD, "backward"))
        bars.append((start, 1.9, 0, 0.8, GATHER, "all-gather"))
        bars.append((start + 3.0, 3.0, 0, 0.8, REDUCE, "reduce-scatter"))
    return bars


def between_jobs() -> list[Bar]:
    """One job computes while the other communicates."""
    bars: list[Bar] = []
    for k in range(6):
        here, there = ("A", "B") if k % 2 == 0 else ("B", "A")
        bars.append((2.0 * k, 2.0, 1, 0.8, JOBS[here], f"job {here}"))
        if k:
            bars.append((2.0 * k, 1.8, 0, 0.8, JOBS[there], f"job {there}"))
    return bars


def across_the_cluster() -> list[Bar]:
    """Four devices; sizes change as jobs come and go."""
    spans = [
        ("A", 0, 3, 0, 4),
        ("A", 3, 7.5, 2, 2),
        ("B", 3, 9.5, 0, 2),
        ("C", 7.5, 12, 2, 2),
        ("D", 9.5, 12, 0, 2),
    ]
    return [
        (left, right - left, row + (height - 1) / 2, height - 0.2, JOBS[job], f"job {job}, {height} workers")
        for job, left, right, row, height in spans
    ]


def draw(axes: Axes, bars: Sequence[Bar], title: str, status: str, rows: Sequence[str]) -> None:
    for left, width, row, height, color, label in bars:
        axes.barh(row, width, left=left, height=height, color=color, edgecolor="white", linewidth=1.2)
        dark = color in (FORWARD, JOBS["B"])
        axes.text(
            left + width / 2, row, label, ha="center", va="center", fontsize=8.5, color="#222222" if dark else "white"
        )
    axes.set_title(title, loc="left", fontsize=10.5, fontweight="bold")
    axes.set_title(status, loc="right", fontsize=9.5, color="#555555")
    axes.set_yticks(range(len(rows)), rows)
    axes.set_xlim(0, LENGTH)
    axes.set_ylim(-0.6, len(rows) - 0.4)
    axes.tick_params(length=0)
    axes.set_xticks([])
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)


def main() -> None:
    figure, (inside, between, across) = pyplot().subplots(
        3, 1, figsize=(WIDTH_IN, 5.8), height_ratios=(2, 2, 3.4), layout="constrained"
    )
    draw(inside, inside_a_job(), "inside a job: overlap", "weft.overlap", ("network", "compute"))
    draw(
        between,
        between_jobs(),
        "between two jobs on a device: crossover",
        "weft run --share, weft up",
        ("network", "device"),
    )
    devices = [f"device {k}" for k in range(4)]
    draw(across, across_the_cluster(), "across the cluster: elastic", "weft up, weft sim", devices)
    across.set_xlabel("time")
    save(figure, Path(__file__).with_name("layers.png"))


if __name__ == "__main__":
    main()
