"""The restart figures as a picture: one bar a contender, its parts in the order they happen."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

from weft.errors import MissingToolError

# Ending the old life in warm hues, starting the new one in cool ones.
COLOURS = ("#8c4a2f", "#d98c3f", "#e8bd7a", "#0f2f66", "#1f5fbf", "#6a97d8", "#a9c4ec", "#6fa58b")


def draw(
    times: Mapping[str, Sequence[Mapping[str, float]]],
    parts: Sequence[str],
    words: Mapping[str, str],
    path: Path,
    caption: str,
) -> None:
    """Write the picture: mean seconds of each part, so that the parts of a bar add up to the mean total."""
    try:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot
    except ImportError:
        raise MissingToolError(
            "matplotlib is not installed, so the results get no picture: pip install 'weft[plot]'"
        ) from None
    figure, axis = pyplot.subplots(figsize=(9.0, 0.8 * len(times) + 1.8), layout="constrained")
    names = list(times)[::-1]
    left_s = [0.0] * len(names)
    for part, colour in zip(parts, COLOURS, strict=True):
        widths_s = [statistics.fmean(row[part] for row in times[name]) for name in names]
        axis.barh(range(len(names)), widths_s, left=left_s, color=colour, label=part)
        left_s = [left + width for left, width in zip(left_s, widths_s, strict=True)]
    for number, total_s in enumerate(left_s):
        axis.text(total_s, number, f" {total_s:.2f} s", va="center")
    axis.set_yticks(range(len(names)), [words[name].replace("`", "") for name in names])
    axis.set_xlabel("seconds from the stop request to the first step again")
    axis.margins(x=0.1)
    axis.legend(ncols=4, loc="upper center", bbox_to_anchor=(0.4, -0.25), frameon=False)
    axis.set_title(caption, fontsize=9)
    figure.savefig(path, dpi=150)
    pyplot.close(figure)
