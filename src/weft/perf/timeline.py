"""Summarizes a recorded timeline: per worker, where the time of a step went and what communication cost.

A step lasts from one forward to the first forward after an update, so the all-gathers launched at its end count in the
next step, where they run.  Waits may lie next to or inside a forward; waiting never counts as computing.

>>> spans = [
...     Span("worker 0", "compute", "forward", 0.0, 1.0),
...     Span("worker 0", "compute", "backward", 1.0, 2.0),
...     Span("worker 0", "compute", "wait", 3.0, 0.5),
...     Span("worker 0", "compute", "update", 3.5, 0.5),
...     Span("worker 0", "communication", "reduce-scatter 0", 2.5, 1.0),
... ]
>>> [summary] = summarize(spans)
>>> summary.step_s, summary.exposed_s, summary.hidden_share
(4.0, 0.5, 0.5)
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median_low

from weft.core.chrome_trace import Span

Interval = tuple[float, float]

COMMUNICATION = "communication"
COMPUTE_LETTERS = {"forward": "F", "backward": "B", "update": "U", "wait": "."}
COMMUNICATION_LETTERS = {"all-reduce": "A", "reduce-scatter": "R", "all-gather": "G"}


@dataclass(frozen=True, slots=True)
class WorkerSummary:
    """One worker; times are medians over its steps, each the time of a step that was recorded."""

    worker: str
    num_steps: int
    step_s: float
    forward_s: float
    backward_s: float
    update_s: float
    communication_s: float  # a collective was in flight
    exposed_s: float  # the computing thread waited
    hidden_share: float  # part of the communication during which compute did not wait; 1 if there was none
    bytes_per_step: float


def workers(spans: Iterable[Span]) -> list[str]:
    """The processes that computed, in numeric order."""
    names = {span.process for span in spans if span.name == "forward"}
    return sorted(names, key=lambda name: [(len(part), part) for part in re.findall(r"\d+|\D+", name)])


def summarize(spans: Sequence[Span]) -> list[WorkerSummary]:
    """One summary per worker that has at least one forward."""
    return [_summary(worker, [span for span in spans if span.process == worker]) for worker in workers(spans)]


def median_step(spans: Sequence[Span], worker: str) -> Interval:
    """The worker's step of median length: of an even number of steps, the shorter of the two in the middle."""
    return _median_step(_steps([span for span in spans if span.process == worker]))


def bars(spans: Sequence[Span], worker: str, width: int) -> tuple[str, str]:
    """The median step as two lines of ``width`` letters: compute and communication."""
    start_s, end_s = median_step(spans, worker)
    own = [s for s in spans if s.process == worker and s.start_s < end_s and s.end_s > start_s]
    computed = {kind: _of_kind(own, kind) for kind in COMPUTE_LETTERS}
    # A wait or an update inside a longer span is drawn over it.
    for outer, *inner in (("forward", "wait"), ("backward", "update", "wait"), ("update", "wait")):
        for kind in inner:
            computed[outer] = _without(computed[outer], computed[kind])
    traveled = {kind: _of_kind(own, kind) for kind in COMMUNICATION_LETTERS}
    cell_s = (end_s - start_s) / width
    cells = [(start_s + i * cell_s, start_s + (i + 1) * cell_s) for i in range(width)]
    return (
        "".join(_letter(cell, computed, COMPUTE_LETTERS) for cell in cells),
        "".join(_letter(cell, traveled, COMMUNICATION_LETTERS) for cell in cells),
    )


def _summary(worker: str, spans: list[Span]) -> WorkerSummary:
    steps = _steps(spans)
    start_s, end_s = _median_step(steps)
    waits = _of_kind(spans, "wait")
    updates = _without(_of_kind(spans, "update"), waits)
    forwards = _without(_of_kind(spans, "forward"), waits)
    backwards = _without(_without(_of_kind(spans, "backward"), waits), updates)
    wire = [span for span in spans if span.track == COMMUNICATION]
    on_wire = _union((span.start_s, span.end_s) for span in wire)
    hidden = _without(on_wire, waits)
    communication_s = _length(on_wire)

    def per_step(intervals: list[Interval]) -> float:
        return median_low(_length(_within(intervals, step)) for step in steps)

    return WorkerSummary(
        worker=worker,
        num_steps=len(steps),
        step_s=end_s - start_s,
        forward_s=per_step(forwards),
        backward_s=per_step(backwards),
        update_s=per_step(updates),
        communication_s=per_step(on_wire),
        exposed_s=per_step(waits),
        hidden_share=_length(hidden) / communication_s if communication_s > 0 else 1.0,
        bytes_per_step=sum(_num_bytes(span) for span in wire) / len(steps),
    )


def _median_step(steps: Sequence[Interval]) -> Interval:
    return median_low((end_s - start_s, (start_s, end_s)) for start_s, end_s in steps)[1]


def _steps(spans: list[Span]) -> list[Interval]:
    """A step begins with the first forward after an update: with accumulation, a step has several forwards."""
    compute = sorted((span for span in spans if span.track != COMMUNICATION), key=lambda span: span.start_s)
    closing = "update" if any(span.name == "update" for span in compute) else "backward"
    starts: list[float] = []
    closed = True
    for span in compute:
        if span.name == "forward" and closed:
            starts.append(span.start_s)
            closed = False
        elif span.name == closing and starts:
            closed = True
    last_end_s = max(span.end_s for span in compute)
    return list(pairwise([*starts, last_end_s]))


def _of_kind(spans: Iterable[Span], kind: str) -> list[Interval]:
    """Spans are named by their kind, sometimes followed by more: ``all-gather 3``."""
    return _union((span.start_s, span.end_s) for span in spans if span.name.partition(" ")[0] == kind)


def _num_bytes(span: Span) -> float:
    num_bytes = span.args.get("bytes", 0)
    return num_bytes if isinstance(num_bytes, int | float) else 0


def _letter(cell: Interval, kinds: dict[str, list[Interval]], letters: dict[str, str]) -> str:
    """The letter of the kind that fills most of the cell; a blank if it is mostly idle."""
    shares = {kind: _length(_within(intervals, cell)) for kind, intervals in kinds.items()}
    kind = max(shares, key=lambda name: shares[name])
    idle_s = cell[1] - cell[0] - sum(shares.values())
    return letters[kind] if shares[kind] > max(0.0, idle_s) else " "


def _union(intervals: Iterable[Interval]) -> list[Interval]:
    merged: list[Interval] = []
    for start, end in sorted(intervals):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


def _without(intervals: list[Interval], holes: list[Interval]) -> list[Interval]:
    """``intervals`` minus ``holes``; both sorted and free of overlap."""
    left: list[Interval] = []
    first = 0
    for start, end in intervals:
        while first < len(holes) and holes[first][1] <= start:
            first += 1
        at = first
        while at < len(holes) and holes[at][0] < end:
            if holes[at][0] > start:
                left.append((start, holes[at][0]))
            start = max(start, holes[at][1])
            at += 1
        if start < end:
            left.append((start, end))
    return left


def _within(intervals: list[Interval], window: Interval) -> list[Interval]:
    low, high = window
    return [(max(a, low), min(b, high)) for a, b in intervals if a < high and b > low]


def _length(intervals: Iterable[Interval]) -> float:
    return sum(end - start for start, end in intervals)
