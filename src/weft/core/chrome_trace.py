"""Timelines in the Chrome trace format, which Perfetto and chrome://tracing open.

One :class:`Span` is one bar; spans with the same ``process`` and ``track`` share a row.

>>> trace = chrome_trace([Span("worker 0", "compute", "forward", start_s=0.0, duration_s=0.5)])
>>> [event["ph"] for event in trace["traceEvents"]]
['M', 'M', 'X']
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Span:
    """Something that took time, on a row of the timeline."""

    process: str
    track: str
    name: str
    start_s: float
    duration_s: float
    args: Mapping[str, Any] = field(default_factory=dict)

    @property
    def end_s(self) -> float:
        return self.start_s + self.duration_s


def chrome_trace(spans: Iterable[Span]) -> dict[str, Any]:
    """The JSON document for ``spans``; rows appear in the order of their first span.

    Perfetto drops bars that start before zero, and bars that overlap another one of their row without lying inside it.
    So the first bar starts at zero or later, times are rounded such that bars that touch do not overlap, and a track
    whose bars do overlap has several rows with the same name.
    """
    shown = list(spans)
    times = _times_ns(shown)
    rows = _rows(shown, times)
    processes: dict[str, int] = {}
    threads: dict[tuple[str, str, int], int] = {}
    names: list[dict[str, Any]] = []
    events: list[dict[str, Any]] = []
    for span, (start_ns, end_ns), row in zip(shown, times, rows, strict=True):
        if span.process not in processes:
            processes[span.process] = len(processes)
            names.append(_name("process_name", processes[span.process], 0, span.process))
        pid = processes[span.process]
        thread = (span.process, span.track, row)
        if thread not in threads:
            threads[thread] = len(threads)
            names.append(_name("thread_name", pid, threads[thread], span.track))
        event = {
            "ph": "X",
            "name": span.name,
            "pid": pid,
            "tid": threads[thread],
            "ts": start_ns / 1e3,
            "dur": (end_ns - start_ns) / 1e3,
        }
        if span.args:
            event["args"] = dict(span.args)
        events.append(event)
    return {"traceEvents": names + events, "displayTimeUnit": "ms"}


def _times_ns(spans: Sequence[Span]) -> list[tuple[int, int]]:
    """Start and end of each span."""
    zero_s = min((span.start_s for span in spans), default=0.0)
    zero_ns = min(round(zero_s * 1e9), 0)
    return [(round(span.start_s * 1e9) - zero_ns, round(span.end_s * 1e9) - zero_ns) for span in spans]


def _rows(spans: Sequence[Span], times: Sequence[tuple[int, int]]) -> list[int]:
    """The row of each span within its track: the first in which it overlaps no other, or lies inside it."""
    found = [0] * len(spans)
    # The ends of the bars that are open in each row of a track, the innermost last.
    tracks: dict[tuple[str, str], list[list[int]]] = {}
    for index in sorted(range(len(spans)), key=lambda index: (times[index][0], -times[index][1])):
        start_ns, end_ns = times[index]
        rows = tracks.setdefault((spans[index].process, spans[index].track), [])
        for open_ends in rows:
            while open_ends and open_ends[-1] <= start_ns:
                open_ends.pop()
        row = next((row for row, ends in enumerate(rows) if not ends or end_ns <= ends[-1]), len(rows))
        if row == len(rows):
            rows.append([])
        rows[row].append(end_ns)
        found[index] = row
    return found


def spans_of(document: Mapping[str, Any]) -> list[Span]:
    """The spans of a Chrome-trace document, as :func:`chrome_trace` wrote them."""
    processes: dict[int, str] = {}
    tracks: dict[tuple[int, int], str] = {}
    spans = []
    for event in document["traceEvents"]:
        if event["ph"] == "M" and event["name"] == "process_name":
            processes[event["pid"]] = event["args"]["name"]
        elif event["ph"] == "M" and event["name"] == "thread_name":
            tracks[event["pid"], event["tid"]] = event["args"]["name"]
        elif event["ph"] == "X":
            spans.append(
                Span(
                    processes[event["pid"]],
                    tracks[event["pid"], event["tid"]],
                    event["name"],
                    event["ts"] / 1e6,
                    event["dur"] / 1e6,
                    event.get("args", {}),
                )
            )
    return spans


def write_chrome_trace(path: str | Path, spans: Iterable[Span]) -> None:
    """Write the document under a temporary name and rename it: a reader sees all of it or none of it."""
    target = Path(path)
    aside = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        aside.write_text(json.dumps(chrome_trace(spans), separators=(",", ":")))
        aside.replace(target)
    finally:
        aside.unlink(missing_ok=True)


def _name(kind: str, pid: int, tid: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": {"name": name}}
