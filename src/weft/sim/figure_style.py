"""How every figure of weft looks: the same color for the same policy or contender, legends off the curves.

Used by ``weft sim --plot``, by the benchmarks, and by the sketches in the docs.  matplotlib is optional; only this
module imports it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weft.errors import MissingToolError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK = "#333333"
QUIET = "#777777"
LIGHT = "#d9d9d9"
BLUE = "#1f5fbf"
WIDTH_IN = 9.0
"""A README shows about 900 pixels: wider figures would shrink their text."""
DPI = 140

# weft is blue everywhere; what it is compared with has other hues; limits are gray.
POLICIES = {
    "balanced": BLUE,
    "exact": "#6fa8e8",
    "doubling": "#009e73",
    "optimus": "#d55e00",
    "tiresias": "#e69f00",
    "srtf": "#8c6d31",
    "afs": "#cc79a7",
    "equal": "#9467bd",
    "fifo": "#8a8a8a",
    "pollux": "#444444",
}
CONTENDERS = {
    "alone": "#bbbbbb",
    "bound": "#555555",
    "ddp": "#d55e00",
    "ddp_best": "#f0a04b",
    "ddp_list": "#b8860b",
    "ddp_plan": "#8c2d04",
    "ddp_1mb": "#f7c99b",
    "fsdp2": "#9467bd",
    "fsdp2_async": "#c5b0d5",
    "dear": "#009e73",
    "weft": BLUE,
    "weft_eager": "#0b2a5b",
    "weft_1mb": "#6fa8e8",
    "weft_25mb": "#b9d3f3",
}
PAIRS = {"serial": "#9e9e9e", "in_phase": "#d55e00", "random_phase": "#f0a04b", "crossover": BLUE}
ACTIVITIES = {"compute": BLUE, "network": "#009e73", "turn": "#f7d9a8"}
# Two jobs or more in one figure.
JOBS = {"A": BLUE, "B": "#f0a04b", "C": "#009e73", "D": "#9467bd"}
# Ending one run of a job in warm hues, starting the next one in cool ones, in the order in which they happen.
RESTART = ("#8c2d04", "#d55e00", "#f0a04b", "#0b2a5b", BLUE, "#6fa8e8", "#b9d3f3", "#009e73")
SPARE = ("#17becf", "#bcbd22", "#e377c2", "#7f7f7f", "#393b79", "#ad494a")


def policy_color(name: str) -> str:
    """The color of a policy; one that somebody registered gets a spare one, always the same."""
    return POLICIES.get(name) or SPARE[sum(name.encode()) % len(SPARE)]


def pyplot() -> Any:
    """matplotlib without a window, or an error that says how to get it."""
    try:
        import matplotlib
    except ImportError:
        raise MissingToolError("figures need matplotlib, which is not installed: pip install 'weft[plot]'") from None
    matplotlib.use("Agg")
    import matplotlib.pyplot

    matplotlib.rcParams.update(
        {
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.edgecolor": QUIET,
            "axes.labelcolor": INK,
            "axes.titlesize": 10,
            "axes.titlelocation": "left",
            "axes.labelsize": 9,
            "text.color": INK,
            "xtick.labelsize": 8.5,
            "ytick.labelsize": 8.5,
            "xtick.color": INK,
            "ytick.color": INK,
            "legend.frameon": False,
            "legend.fontsize": 8.5,
        }
    )
    return matplotlib.pyplot


def save(figure: Figure, path: Path) -> None:
    """Write aside and rename, so that a reader sees the whole figure or none."""
    aside = path.with_name(f".{path.stem}.{os.getpid()}{path.suffix}")
    try:
        # No date inside: the same data gives the same bytes.
        figure.savefig(aside, dpi=DPI, metadata={"Software": None} if path.suffix == ".png" else None)
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)
        pyplot().close(figure)


def legend_below(figure: Figure, axes: Sequence[Axes], num_columns: int) -> None:
    """One legend for all panels, under them, where it covers no curve."""
    found: dict[str, Any] = {}
    for axis in axes:
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    figure.legend(list(found.values()), list(found), loc="outside lower center", ncols=num_columns)


def mark_cut(axis: Axes, place: float, limit: float) -> None:
    """Two slanted strokes through a horizontal bar that is longer than the axis."""
    for shift in (0.90, 0.915):
        axis.plot(
            [limit * (shift - 0.006), limit * (shift + 0.006)],
            [place + 0.5, place - 0.5],
            color="white",
            linewidth=2.2,
            solid_capstyle="butt",
        )
