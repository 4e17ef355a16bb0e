"""The results of ``weft bench crossover`` as Markdown tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.crossover_rows import ratio, share_of_bound, slowdown
from benchmarks.intervals import Ratio, interval_note
from benchmarks.record import Row, RowRecord, headline, markdown_table, sources

NAME = "crossover"
LONE = "lone"
WAYS = ("serial", "in_phase", "random_phase")
"""How two jobs can share hosts without crossover."""
TIMES = ("alone", "serial", "in_phase", "random_phase", "crossover", "bound")
DEFINITIONS = (
    "Two jobs of two workers each on two hosts of one core, connected by a shaped link. Milliseconds until both jobs "
    "have finished one step (unequal pairs: their work counted in steps alone). **alone**: a step of the first job "
    "with its devices to itself. **serial**: one after the other. **in phase**, **random phase**: both at the same "
    "time, uncoordinated, started together or half a step apart. **bound**: the most the device and the link at line "
    "rate allow: max(sum of compute, the longer job alone, sum of network times)."
)


def open_record(folder: Path, command: str) -> RowRecord:
    return RowRecord.open(folder, NAME, command, (LONE,))


def keep(record: RowRecord) -> None:
    record.save(markdown(record.document()))


def markdown(document: dict[str, Any]) -> str:
    """The whole page."""
    rows: list[Row] = document["rows"]
    lone: list[Row] = document[LONE]
    lines = ["# Crossover benchmark", "", headline(document), *sources([*rows, *lone])]
    if rows:
        lines += ["", DEFINITIONS, "", *time_table(rows)]
        lines += [
            "",
            "How many times as fast is crossover, and what each job pays (its step over its step alone), each with its "
            "95 % confidence interval, paired over rounds.",
            "",
            *ratio_table(rows),
        ]
    fillers = [row for row in rows if row["pair"] == "filler"]
    if fillers:
        lines += ["", "Primary + filler; the filler has one worker per host and does not communicate.", ""]
        lines += filler_table(fillers)
    if lone:
        lines += ["", "A job by itself: how much longer a step is with sharing switched on.", ""]
        lines += lone_table(lone)
    if document.get("failures"):
        lines += ["", "Not measured:", "", *(f"- {failure.splitlines()[0]}" for failure in document["failures"])]
    return "\n".join(lines) + "\n"


def time_table(rows: Sequence[Row]) -> list[str]:
    heads = [*_HEADS, *(name.replace("_", " ") for name in TIMES), "same losses as alone", "measured"]
    body = [
        [*_name(row), *(f"{row[f'{name}_ms']:.0f}" for name in TIMES), _yes(row["loss_equal"]), row["date"]]
        for row in rows
    ]
    return markdown_table(heads, body)


def ratio_table(rows: Sequence[Row]) -> list[str]:
    heads = [*_HEADS, "vs serial", "vs in phase", "vs random phase", "of bound"]
    heads += ["slowdown A", "slowdown B", "predicted", "pairing"]
    body = []
    for row in rows:
        cells = [*_name(row), *(str(ratio(row, name)) for name in WAYS)]
        cells += [_percent(share_of_bound(row))]
        cells += [str(slowdown(row, place)) for place in (0, 1)]
        cells += [f"{row['predicted_gain']:.2f}x", "refuses" if row["refused"] else "pairs"]
        body.append(cells)
    return [*markdown_table(heads, body), *_note(rows)]


def _note(rows: Sequence[Row]) -> list[str]:
    return interval_note(ratio(row, name) for row in rows for name in WAYS)


def full_table(document: Mapping[str, Any]) -> list[str]:
    """Times and ratios of every pair in one table, for the docs."""
    heads = [*_HEADS, *(name.replace("_", " ") for name in TIMES), "vs serial", "vs in phase", "vs random phase"]
    heads += ["of bound", "slowdown of each", "predicted", "pairing", "same losses"]
    body = []
    for row in document["rows"]:
        cells = [*_name(row), *(f"{row[f'{name}_ms']:.0f}" for name in TIMES)]
        cells += [str(ratio(row, name)) for name in WAYS]
        cells += [_percent(share_of_bound(row)), ", ".join(str(slowdown(row, place)) for place in (0, 1))]
        cells += [f"{row['predicted_gain']:.2f}x", "refuses" if row["refused"] else "pairs", _yes(row["loss_equal"])]
        body.append(cells)
    return [*markdown_table(heads, body), *_note(document["rows"])]


def brief_table(document: Mapping[str, Any]) -> list[str]:
    """Equal pairs where network and compute take about as long, with intervals."""
    heads = ["jobs", "network/compute", "rounds", "one after the other", "started together", "started out of phase"]
    heads += ["crossover", "bound", "vs one after the other", "vs the best other way"]
    body = []
    rows = [row for row in document["rows"] if row["pair"] == "equal" and row["ratio_wanted"] >= 1.0]
    for row in rows:
        best = min(WAYS, key=lambda name: float(row[f"{name}_ms"]))
        cells = [_JOBS[row["job"]], *_name(row)[2:]]
        cells += [f"{row[f'{name}_ms']:.0f}" for name in TIMES if name != "alone"]
        body.append([*cells, str(ratio(row, "serial")), str(ratio(row, best))])
    return [*markdown_table(heads, body), *_note(rows)]


_JOBS = {"plain": "all-reduce after backward", "ddp": "DDP", "overlap": "weft.overlap"}


def filler_table(rows: Sequence[Row]) -> list[str]:
    heads = ["primary", "network/compute", "primary slowed", "left over by the primary", "filler got of that"]
    body = [
        [
            str(row["job"]),
            f"{row['network_over_compute']:.2f}",
            _longer(slowdown(row, 0)),
            _percent(row["left_over"]),
            _percent(row["filler_got"]),
        ]
        for row in rows
    ]
    return markdown_table(heads, body)


def _longer(ratio: Ratio) -> str:
    """By how much a step is longer, with its interval."""
    reach = f" ({100 * (ratio.low - 1):+.1f} to {100 * (ratio.high - 1):+.1f} %)" if ratio.has_interval else ""
    return f"{100 * (ratio.value - 1):+.1f} %{reach}"


def lone_table(rows: Sequence[Row]) -> list[str]:
    heads = [
        "job",
        "step alone, ms",
        "longer by",
        "95 % interval",
        "pairs of blocks",
        "gate's own share",
        "same losses",
    ]
    body = [
        [
            str(row["job"]),
            f"{row['step_ms']:.0f}",
            f"{100 * row['overhead']:+.2f} %",
            f"{100 * row['low']:+.2f} to {100 * row['high']:+.2f} %",
            str(row["num_pairs"]),
            f"{100 * row['gate_share']:.2f} %",
            _yes(row["loss_equal"]),
        ]
        for row in rows
    ]
    return markdown_table(heads, body)


_HEADS = ("pair", "job", "network/compute", "rounds")


def _name(row: Row) -> list[str]:
    return [str(row["pair"]), str(row["job"]), f"{row['network_over_compute']:.2f}", str(len(row["rounds"]))]


def _yes(is_equal: bool) -> str:
    return "yes" if is_equal else "NO"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.0f} %"
