"""Draw crossover.png: two jobs on one device and one link.  A sketch with compute 1 and network 1, not a measurement.

Run from the root: python docs/img/draw_crossover.py
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes

from weft.sim.figure_style import JOBS, WIDTH_IN, pyplot, save

Bar = tuple[float, float, float, float, str, str]  # left, width, row, height, color, label

DEVICE, LINK = 1.0, 0.0
LENGTH = 8.0


def one_after_the_other() -> list[Bar]:
    """A's steps, then B's: device and link are each idle half of the time."""
    bars: list[Bar] = []
    for k in range(4):
        job = "A" if k < 2 else "B"
        bars.append((2.0 * k, 1.0, DEVICE, 0.8, JOBS[job], f"{job} computes"))
        bars.append((2.0 * k + 1.0, 1.0, LINK, 0.8, JOBS[job], f"{job} communicates"))
    return bars


def in_phase() -> list[Bar]:
    """Both compute at half speed, then both communicate at half speed: nothing is gained, and nothing changes it."""
    bars: list[Bar] = []
    for start in (0.0, 4.0):
        for half, job in ((0.2, "A"), (-0.2, "B")):
            bars.append((start, 2.0, DEVICE + half, 0.38, JOBS[job], f"{job} computes at half speed"))
            bars.append((start + 2.0, 2.0, LINK + half, 0.38, JOBS[job], f"{job} communicates at half speed"))
    return bars


def crossover() -> list[Bar]:
    """The device is handed over where one begins to wait for the network."""
    bars: list[Bar] = []
    for k in range(8):
        here, there = ("A", "B") if k % 2 == 0 else ("B", "A")
        bars.append((float(k), 1.0, DEVICE, 0.8, JOBS[here], f"{here} computes"))
        if k:
            bars.append((float(k), 1.0, LINK, 0.8, JOBS[there], f"{there} comm."))
    return bars


def draw(axes: Axes, bars: Sequence[Bar], title: str, remark: str) -> None:
    for left, width, row, height, color, label in bars:
        axes.barh(row, width, left=left, height=height, color=color, edgecolor="white", linewidth=1.2)
        dark = color == JOBS["B"]
        axes.text(
            left + width / 2, row, label, ha="center", va="center", fontsize=8, color="#222222" if dark else "white"
        )
    axes.set_title(title, loc="left", fontsize=10.5, fontweight="bold")
    axes.set_title(remark, loc="right", fontsize=9.5, color="#555555")
    axes.set_yticks([LINK, DEVICE], ["link", "device"])
    axes.set_xlim(0, LENGTH)
    axes.set_ylim(-0.55, 1.55)
    axes.tick_params(length=0)
    axes.set_xticks([])
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)


def main() -> None:
    figure, axes = pyplot().subplots(3, 1, figsize=(WIDTH_IN, 5.0), layout="constrained")
    draw(axes[0], one_after_the_other(), "one after the other", "2 + 2 steps in 8")
    draw(axes[1], in_phase(), "at the same time, uncoordinated", "2 + 2 steps in 8: they stay in phase")
    draw(axes[2], crossover(), "crossover", "4 + 4 steps in 8")
    axes[2].set_xlabel("time")
    save(figure, Path(__file__).with_name("crossover.png"))


if __name__ == "__main__":
    main()
