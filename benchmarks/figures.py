"""What the figures of several benchmarks share; colors and fonts are in weft/sim/figure_style.py."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.record import keep_record
from weft.errors import MissingToolError
from weft.sim.figure_style import BLUE, INK, QUIET, WIDTH_IN, mark_cut, pyplot, save

Document = Mapping[str, Any]
MAX_SHARE = 1.6


def draw_if_possible(draw: Callable[[Document, Path], None], document: Document, path: Path) -> None:
    """The figure is optional: without matplotlib the measurements still count."""
    try:
        draw(document, path)
    except MissingToolError as error:
        print(f"weft: {error}", file=sys.stderr)


def finish(
    name: str,
    command: str,
    document: Document,
    tables: Callable[[Document], str],
    draw: Callable[[Document, Path], None],
    folder: Path,
) -> None:
    """Print the tables of a benchmark made in one run, and save them with its figure."""
    print(tables(document))
    whole = keep_record(folder, name, command, document, tables(document))
    draw_if_possible(draw, whole, folder / f"{name}.png")
    print(f"written to {folder / name}.json (and .md, .png)", file=sys.stderr)


def head(figure: Any, title: str, document: Document) -> None:
    """The title, and when and on what it was measured."""
    dates = sorted({row["date"][:10] for row in document["rows"]}) if _has_dated_rows(document) else []
    when = document["date"][:10] if not dates else " to ".join(dict.fromkeys((dates[0], dates[-1])))
    measured = f"{when}, {document['machine']['cores']} cores"
    # The second line is kept free by the title and written in smaller letters.
    figure.suptitle(f"{title}\n", x=0.01, ha="left", fontsize=11)
    figure.text(0.01, 1 - 0.25 / figure.get_figheight(), measured, va="top", fontsize=8, color=QUIET)


def _has_dated_rows(document: Document) -> bool:
    rows = document.get("rows")
    return isinstance(rows, list) and bool(rows) and "date" in rows[0]


def draw_costs(title: str, costs: Sequence[tuple[str, float, float, str]], document: Document, path: Path) -> None:
    """Each cost as a share of what is allowed: (name, measured, allowed, measured with its unit)."""
    plt = pyplot()
    figure, axis = plt.subplots(figsize=(WIDTH_IN, 0.42 * len(costs) + 1.3), layout="constrained")
    for place, (_, measured, allowed, text) in enumerate(costs):
        share = measured / allowed
        color = BLUE if share <= 1 else "#d55e00"
        axis.barh(place, min(share, MAX_SHARE), height=0.62, color=color)
        if share > MAX_SHARE:
            mark_cut(axis, place, MAX_SHARE)
        axis.text(min(share, MAX_SHARE) + 0.015, place, text, va="center", fontsize=8.5, color=INK)
    axis.axvline(1.0, color=INK, linestyle="--", linewidth=1)
    axis.text(1.0, -0.75, "allowed", ha="center", va="bottom", fontsize=8.5)
    axis.set_yticks(range(len(costs)), [name for name, _, _, _ in costs])
    axis.set_ylim(len(costs) - 0.4, -0.6)
    axis.set_xlim(0, MAX_SHARE + 0.15)
    axis.xaxis.set_major_formatter(lambda share, _: f"{100 * share:.0f} %")
    axis.set_xlabel("measured, as a share of what is allowed")
    head(figure, title, document)
    save(figure, path)
