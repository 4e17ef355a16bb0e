"""The queue as a Gantt chart: which job had which device, and for how long it waited."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.figures import Document, head
from benchmarks.queue_plan import QUEUE
from benchmarks.queue_results import hosts_of
from benchmarks.queue_rows import ContenderSummary, summaries, typical
from benchmarks.record import Row
from weft.sim.figure_style import INK, QUIET, WIDTH_IN, pyplot, save

# One color per model, distinguishable by color-blind readers.
MODEL_COLORS = {"resnet50": "#0072b2", "densenet201": "#56b4e9", "bert-base": "#e69f00"}


def draw(document: Document, path: Path) -> None:
    """One panel per contender, for the smallest number of hosts, with jobs as rows."""
    plt = pyplot()
    rows: Sequence[Row] = document["rows"]
    num_hosts = hosts_of(rows)[0]
    found = summaries(rows, num_hosts)
    figure, axes = plt.subplots(
        len(found), 1, figsize=(WIDTH_IN, 0.9 + 1.75 * len(found)), squeeze=False, layout="constrained", sharex=True
    )
    for axis, one in zip(axes[:, 0], found, strict=True):
        _panel(axis, one)
    axes[-1][0].set_xlabel("seconds since the first job arrived")
    for model, color in MODEL_COLORS.items():
        axes[0][0].barh(0, 0, color=color, label=model)
    axes[0][0].barh(0, 0, color="white", edgecolor=QUIET, hatch="////", label="two jobs take turns")
    head(figure, f"{len(QUEUE)} jobs on {num_hosts} hosts, from arrival to completion", document)
    figure.legend(*axes[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    save(figure, path)


def _panel(axis: Any, one: ContenderSummary) -> None:
    row = typical(one.rows)
    models = {job["name"]: job["model"] for job in row["jobs"]}
    places = {job["name"]: place for place, job in enumerate(row["jobs"])}
    for job in row["jobs"]:
        place = places[job["name"]]
        axis.plot(
            [job["arrived_s"], job["arrived_s"] + job["took_s"]], [place] * 2, color=QUIET, linewidth=0.8, zorder=1
        )
    for name, start_s, end_s, devices, partner in row["spans"]:
        height = 0.36 if len(devices) == 1 else 0.8
        look = {"hatch": "////", "edgecolor": "white", "linewidth": 0} if partner else {}
        axis.barh(places[name], end_s - start_s, left=start_s, height=height, color=MODEL_COLORS[models[name]], **look)
    axis.set_yticks(range(len(places)), list(places), fontsize=6)
    axis.invert_yaxis()
    gain = "" if one.faster is None else f", {one.faster} faster"
    axis.set_title(
        f"{one.contender.title}: mean completion {one.median('mean_s'):.0f} s{gain}",
        fontsize=8.5,
        loc="left",
        color=INK,
    )
