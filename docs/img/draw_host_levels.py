"""Draw host-levels.png: how a bucket travels between two hosts of two workers each.

Run from the root: python docs/img/draw_host_levels.py
"""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Rectangle

from weft.overlap.transport.host_layout import host_layout

LAYOUT = host_layout([0, 0, 1, 1])
ROW_COLOURS = ["#8ecae6", "#219ebc", "#ffb703", "#bc6c25"]
LOCAL, LINK = "#6a994e", "#9d79bc"
WIDTH, HEIGHT = 0.8, 0.2


def place(worker: int) -> float:
    return worker * 1.5 + LAYOUT.host_of[worker] * 0.7


def rows(axes: Axes, x: float, y: float, filled: list[int], names: dict[int, str]) -> None:
    """A worker's view of a bucket: one row per worker, rank 0 on top."""
    for row, colour in enumerate(ROW_COLOURS):
        low = y - row * HEIGHT
        face = colour if row in filled else "#f4f4f4"
        axes.add_patch(Rectangle((x, low), WIDTH, HEIGHT, facecolor=face, edgecolor="#444444", lw=0.6, zorder=3))
        if row in names:
            axes.text(x + WIDTH / 2, low + HEIGHT / 2, names[row], ha="center", va="center", fontsize=6.5, zorder=4)


def arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float], colour: str, bend: float) -> None:
    style = f"arc3,rad={bend}"
    axes.add_patch(
        FancyArrowPatch(start, end, connectionstyle=style, arrowstyle="-|>", mutation_scale=9, color=colour, lw=1.3)
    )


def hosts(axes: Axes, bottom: float, top: float) -> None:
    for host, workers in enumerate(LAYOUT.hosts):
        left = place(workers[0]) - 0.25
        width = place(workers[-1]) + WIDTH + 0.25 - left
        axes.add_patch(
            FancyBboxPatch((left, bottom), width, top - bottom, boxstyle="round,pad=0.05", fc="#fafafa", ec="#999999")
        )
        axes.text(left + width / 2, top - 0.03, f"host {host}", ha="center", va="top", fontsize=8, color="#555555")


def middle(row: int, y: float) -> float:
    return y - row * HEIGHT + HEIGHT / 2


def reduce_scatter(axes: Axes) -> None:
    axes.set_title("reduce-scatter (under backward)", fontsize=10, loc="left")
    hosts(axes, -2.1, 1.05)
    for worker in range(4):
        rows(axes, place(worker), 0.45, [0, 1, 2, 3], {})
        axes.text(place(worker) + WIDTH / 2, 0.72, f"worker {worker}", ha="center", fontsize=8)
        mine = list(LAYOUT.rows_of(worker))
        rows(axes, place(worker), -1.15, mine, dict.fromkeys(mine, "host's sum"))
    for ranks in LAYOUT.hosts:
        for reader in ranks:
            for writer in ranks:
                start = (place(writer) + WIDTH / 2, 0.45 - 3 * HEIGHT - 0.02)
                arrow(axes, start, (place(reader) + WIDTH / 2, -1.15 + HEIGHT + 0.03), LOCAL, 0.0)
    for owner in range(4):
        for host in range(2):
            sender = LAYOUT.delegate(host, owner)
            if sender != owner:
                inward = sender < owner
                start = (place(sender) + (WIDTH if inward else 0), middle(owner, -1.15))
                end = (place(owner) + (0 if inward else WIDTH), middle(owner, -1.15))
                arrow(axes, start, end, LINK, 0.18 if inward else -0.18)


def all_gather(axes: Axes) -> None:
    axes.set_title("all-gather (under the next forward)", fontsize=10, loc="left")
    hosts(axes, -2.1, 1.05)
    for worker in range(4):
        rows(axes, place(worker), 0.45, [worker], {worker: "new values"})
        axes.text(place(worker) + WIDTH / 2, 0.72, f"worker {worker}", ha="center", fontsize=8)
        rows(axes, place(worker), -1.15, [0, 1, 2, 3], {})
    for owner in range(4):
        for host in range(2):
            receiver = LAYOUT.delegate(host, owner)
            if receiver != owner:
                inward = owner < receiver
                start = (place(owner) + (WIDTH if inward else 0), middle(owner, 0.45))
                end = (place(receiver) + (0 if inward else WIDTH), middle(owner, 0.45))
                arrow(axes, start, end, LINK, 0.18 if inward else -0.18)
    for ranks in LAYOUT.hosts:
        for reader in ranks:
            for writer in ranks:
                start = (place(writer) + WIDTH / 2, 0.45 - 3 * HEIGHT - 0.02)
                arrow(axes, start, (place(reader) + WIDTH / 2, -1.15 + HEIGHT + 0.03), LOCAL, 0.0)


def main() -> None:
    figure, both = plt.subplots(1, 2, figsize=(11, 3.9))
    for axes, draw in zip(both, (reduce_scatter, all_gather), strict=True):
        draw(axes)
        axes.set_xlim(-0.4, 6.4)
        axes.set_ylim(-2.3, 1.3)
        axes.axis("off")
    handles = [plt.Line2D([], [], color=LOCAL, lw=2), plt.Line2D([], [], color=LINK, lw=2)]
    figure.legend(
        handles, ["in the host's shared memory", "over the link: each row once per host"], loc="lower center", ncols=2
    )
    figure.tight_layout(rect=(0, 0.07, 1, 1))
    figure.savefig(Path(__file__).with_name("host-levels.png"), dpi=130)


if __name__ == "__main__":
    main()
