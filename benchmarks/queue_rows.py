"""Turns a played queue into a row, and rows into a comparison.  Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, median
from typing import Any

from benchmarks.intervals import Ratio, paired_ratio
from benchmarks.queue_models import LINK_BITS_PER_S
from benchmarks.queue_plan import CONTENDERS, QueueContender, QueueJob, StartCosts, replays
from benchmarks.record import Row
from weft.core.status_rows import FINAL_STATES, JobDetail
from weft.demo.contest import Played
from weft.sim.result import percentile

# (job, from, until, devices, partner)
Span = tuple[str, float, float, tuple[int, ...], str]


class SpanRecorder:
    """Which job had which devices, as observed at each poll."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.losses: dict[str, float | None] = {}
        self._open: dict[str, tuple[float, tuple[int, ...], str]] = {}

    def look(self, now_s: float, rows: Sequence[JobDetail]) -> None:
        names = {row["id"]: row["name"] for row in rows}
        for row in rows:
            name = row["name"]
            self.losses[name] = row["loss"]
            is_over = row["state"] in FINAL_STATES
            devices = () if is_over else tuple(row["devices"])
            state = devices, names.get(row["partner"] or "", "")
            held = self._open.get(name)
            if held is not None and held[1:] != state:
                self.spans.append((name, round(held[0], 2), round(now_s, 2), *held[1:]))
                del self._open[name]
            if devices and name not in self._open:
                self._open[name] = (now_s, *state)


@dataclass(frozen=True, slots=True)
class Counters:
    """What the hosts counted while the queue was played."""

    busy_device_s: float
    """Time in which devices computed, summed over devices."""
    sent_bytes: tuple[int, ...]
    """By host."""
    costs: Mapping[str, StartCosts]
    """Of starts, by model."""


def key_of(num_hosts: int, number: int, contender: str) -> str:
    return f"{num_hosts} hosts, round {number}, {contender}"


def make_row(
    contender: QueueContender,
    queue: Sequence[QueueJob],
    num_hosts: int,
    number: int,
    played: Played,
    recorder: SpanRecorder,
    counters: Counters,
) -> Row:
    """One play of the queue, next to the mean of the simulator's replays of the same arrivals."""
    arrivals = {job.name: job.arrived_s for job in played.completions}
    expected = replays(contender, queue, num_hosts, counters.costs, arrivals)
    means_s = [one.mean_jct_s for one in expected]
    expected_s = {
        jobs[0].name: fmean(job.completion_s for job in jobs)
        for jobs in zip(*(one.jobs for one in expected), strict=True)
    }
    by_name = {job.name: job for job in queue}
    jobs = [
        {
            "name": job.name,
            "model": by_name[job.name].model,
            "steps": by_name[job.name].num_steps,
            "arrived_s": round(job.arrived_s, 2),
            "took_s": round(job.took_s, 2),
            "simulated_s": round(expected_s[job.name], 2),
            "restarts": job.restarts,
            "loss": recorder.losses.get(job.name),
        }
        for job in played.completions
    ]
    makespan_s = played.makespan_s
    link_s = [8 * sent / LINK_BITS_PER_S for sent in counters.sent_bytes]
    return {
        "hosts": num_hosts,
        "round": number,
        "contender": contender.name,
        "mean_s": round(played.mean_s, 2),
        "p90_s": round(percentile(sorted(job.took_s for job in played.completions), 90), 2),
        "makespan_s": round(makespan_s, 2),
        "device_utilization": round(counters.busy_device_s / (num_hosts * makespan_s), 3),
        "link_utilization": round(fmean(link_s) / makespan_s, 3),
        "restarts": sum(job.restarts for job in played.completions),
        "start_s": {model: round(cost.start_s, 2) for model, cost in counters.costs.items()},
        "restart_s": {model: round(cost.restart_s, 2) for model, cost in counters.costs.items()},
        "simulated_mean_s": round(fmean(means_s), 2),
        "simulated_range_s": [round(min(means_s), 2), round(max(means_s), 2)],
        "simulated_p90_s": round(fmean(one.percentile_jct_s(90) for one in expected), 2),
        "simulated_makespan_s": round(fmean(one.makespan_s for one in expected), 2),
        "jobs": jobs,
        "spans": [list(span) for span in recorder.spans],
    }


@dataclass(frozen=True, slots=True)
class ContenderSummary:
    """One contender, over all rounds in which it was played."""

    contender: QueueContender
    rows: tuple[Row, ...]
    faster: Ratio | None
    """Mean completion time of FIFO + DDP over this one's; None for itself, or if they have no round in common."""
    step: Ratio | None
    """The same with the contender before it instead of FIFO + DDP."""
    share: float | None
    """Of the whole gain, in logarithms: what this contender adds to the one before it."""

    def median(self, field: str) -> float:
        return median(float(row[field]) for row in self.rows)


def summaries(rows: Sequence[Row], num_hosts: int) -> list[ContenderSummary]:
    """In the order of ``CONTENDERS``; contenders that were not played are left out."""
    by_contender: dict[str, dict[int, Row]] = {}
    for row in rows:
        if row["hosts"] == num_hosts:
            by_contender.setdefault(row["contender"], {})[row["round"]] = row
    played = [name for name in CONTENDERS if name in by_contender]
    ratios = {name: _ratio(by_contender[played[0]], by_contender[name]) for name in played[1:]}
    steps = {name: _ratio(by_contender[last], by_contender[name]) for last, name in pairwise(played)}
    shares = gain_shares([median(row["mean_s"] for row in by_contender[name].values()) for name in played])
    return [
        ContenderSummary(CONTENDERS[name], tuple(by_contender[name].values()), ratios.get(name), steps.get(name), share)
        for name, share in zip(played, shares, strict=True)
    ]


def gain_shares(means_s: Sequence[float]) -> list[float | None]:
    """How much of the gain from the first to the last each one adds; nothing where there is no gain.

    >>> gain_shares([8.0, 4.0, 2.0])
    [None, 0.5, 0.5]
    """
    whole = math.log(means_s[0] / means_s[-1]) if means_s else 0.0
    shares: list[float | None] = [None for _ in means_s]
    if whole > 0:
        for place in range(1, len(means_s)):
            shares[place] = math.log(means_s[place - 1] / means_s[place]) / whole
    return shares


def _ratio(slower: Mapping[int, Row], faster: Mapping[int, Row]) -> Ratio | None:
    common = sorted(slower.keys() & faster.keys())
    if not common:
        return None
    return paired_ratio([slower[n]["mean_s"] for n in common], [faster[n]["mean_s"] for n in common])


def simulator_error(rows: Sequence[Row]) -> float:
    """How far the simulator's mean completion time was off, as a share of the measured one."""
    return fmean(abs(row["simulated_mean_s"] / row["mean_s"] - 1) for row in rows)


def typical(rows: Sequence[Row]) -> dict[str, Any]:
    """The round whose mean completion time is the median of all, to draw."""
    ordered = sorted(rows, key=lambda row: float(row["mean_s"]))
    return ordered[(len(ordered) - 1) // 2]
