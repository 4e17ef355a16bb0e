"""The results of ``weft bench queue`` as Markdown tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.intervals import interval_note
from benchmarks.queue_plan import QUEUE
from benchmarks.queue_rows import ContenderSummary, simulator_error, summaries
from benchmarks.record import Row, RowRecord, headline, markdown_table, sources

NAME = "queue"
DEFINITIONS = (
    f"A queue of {len(QUEUE)} jobs on hosts with one device each, on a Ray cluster: scaled layer profiles of three "
    "models, real processes, communication, and checkpoints; compute is emulated (a device runs one layer at a time)."
    " The link stands for 10 Gb/s Ethernet, scaled down with the models, and a device for 40 TFLOP/s. **FIFO** gives "
    "each job the number of workers its owner asked for, in order of arrival; **elastic** may change it (policy "
    "`balanced`); steps and global batches are the same for all. Medians over rounds, in which the contenders take "
    "turns. **completion**: from submission to end. **faster**: mean completion time of the first row over this "
    "one's, paired by round, with its 95 % confidence interval; **vs the row above**: the same with the row above. "
    "**share of the gain**: what a row adds to the row above, as a share of the whole gain of the last row, in "
    "logarithms. **devices**, **links**: share of the makespan in which devices computed and links carried bytes "
    "(counted by the interfaces, Ray's own traffic included). **simulated**: `weft sim`'s replay of the same arrivals "
    "with step times from `weft predict` and the measured cost of a start of each model; it was given no measured "
    "step. With a range, it also knows the measured cost of a restart, and is the mean of 25 replays whose starts cost "
    "more or less, as in reality, with the range of their means: which job gets a free device, and so the course of "
    "the queue, can depend on a tenth of a second."
)


def keep(record: RowRecord) -> None:
    """Write what there is."""
    record.rows.sort(key=lambda row: (row["hosts"], row["round"], row["contender"]))
    record.save(markdown(record.document()))


def hosts_of(rows: Sequence[Row]) -> list[int]:
    return sorted({row["hosts"] for row in rows})


def markdown(document: dict[str, Any]) -> str:
    """The whole page."""
    rows: list[Row] = document["rows"]
    lines = ["# Queue benchmark", "", headline(document), *sources(rows), "", DEFINITIONS]
    for num_hosts in hosts_of(rows):
        found = summaries(rows, num_hosts)
        lines += ["", f"## {num_hosts} hosts", "", *summary_table(found), "", *_job_table(found)]
    if document.get("failures"):
        lines += ["", "Not measured:", "", *(f"- {failure.splitlines()[0]}" for failure in document["failures"])]
    return "\n".join(lines) + "\n"


def summary_table(found: Sequence[ContenderSummary]) -> list[str]:
    """One row per contender."""
    return [*markdown_table(_HEADS, _summary_cells(found)), *_note(found)]


def _note(found: Sequence[ContenderSummary]) -> list[str]:
    return interval_note(ratio for one in found for ratio in (one.faster, one.step))


_HEADS = (
    *("jobs run", "rounds", "mean completion, s", "faster", "vs the row above", "share of the gain", "p90, s"),
    *("makespan, s", "devices busy", "links busy", "restarts", "simulated mean, s", "simulator off by"),
)


def _summary_cells(found: Sequence[ContenderSummary]) -> list[list[object]]:
    body = []
    for one in found:
        cells: list[object] = [one.contender.title, len(one.rows), f"{one.median('mean_s'):.1f}"]
        cells += [one.faster or "-", one.step or "-", "-" if one.share is None else f"{100 * one.share:.0f} %"]
        cells += [f"{one.median('p90_s'):.1f}", f"{one.median('makespan_s'):.1f}"]
        cells += [f"{100 * one.median(name):.0f} %" for name in ("device_utilization", "link_utilization")]
        cells += [f"{one.median('restarts'):.0f}", _simulated_cell(one)]
        body.append([*cells, f"{100 * simulator_error(one.rows):.0f} %"])
    return body


def _simulated_cell(one: ContenderSummary) -> str:
    """The mean with its range, which older results do not have."""
    mean_s = f"{one.median('simulated_mean_s'):.1f}"
    ranges = [row["simulated_range_s"] for row in one.rows if "simulated_range_s" in row]
    if not ranges:
        return mean_s
    return f"{mean_s} ({min(least for least, _ in ranges):.1f}-{max(most for _, most in ranges):.1f})"


def headline_queue(document: Mapping[str, Any]) -> list[str]:
    """Two hosts, in the fewest columns."""
    heads = ["jobs run", "mean completion", "faster", "p90", "makespan", "devices busy", "links busy"]
    body = []
    found = summaries(document["rows"], 2)
    for one in found:
        cells = [one.contender.title, f"{one.median('mean_s'):.1f} s", one.faster or "-"]
        cells += [f"{one.median(name):.0f} s" for name in ("p90_s", "makespan_s")]
        body.append(
            [*cells, *(f"{100 * one.median(name):.0f} %" for name in ("device_utilization", "link_utilization"))]
        )
    return [*markdown_table(heads, body), *_note(found)]


def brief_queue(document: Mapping[str, Any]) -> list[str]:
    """Every number of hosts, next to the simulation."""
    found = {num_hosts: summaries(document["rows"], num_hosts) for num_hosts in hosts_of(document["rows"])}
    body = [[num_hosts, *cells] for num_hosts, own in found.items() for cells in _summary_cells(own)]
    return [*markdown_table(["hosts", *_HEADS], body), *_note([one for own in found.values() for one in own])]


def _job_table(found: Sequence[ContenderSummary]) -> list[str]:
    """Completion times by job, of the last round of each contender."""
    last = {one.contender.title: {job["name"]: job for job in one.rows[-1]["jobs"]} for one in found}
    heads = ["job", "steps", "arrived, s", *(f"{title}, s (simulated)" for title in last)]
    body = []
    for name, job in next(iter(last.values())).items():
        times = (jobs.get(name) for jobs in last.values())
        shown = ["-" if one is None else f"{one['took_s']:.0f} ({one['simulated_s']:.0f})" for one in times]
        body.append([name, job["steps"], f"{job['arrived_s']:.0f}", *shown])
    return markdown_table(heads, body)
