"""Timelines in the Chrome trace format, which Perfetto and chrome://tracing open.

One :class:`Span` is one bar; spans with the same ``process`` and ``track`` share a row.

>>> trace = chrome_trace([Span("worker 0", "compute", "forward", start_s=0.0, duration_s=0.5)])
>>> [event["ph"] for event in trace["traceEvents"]]
['M', 'M', 'X']
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
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
    """The JSON document for ``spans``; rows appear in the order of their first span."""
    processes: dict[str, int] = {}
    tracks: dict[tuple[str, str], int] = {}
    names: list[dict[str, Any]] = []
    events: list[dict[str, Any]] = []
    for span in spans:
        if span.process not in processes:
            processes[span.process] = len(processes)
            names.append(_name("process_name", processes[span.process], 0, span.process))
        pid = processes[span.process]
        if (span.process, span.track) not in tracks:
            tracks[span.process, span.track] = len(tracks)
            names.append(_name("thread_name", pid, tracks[span.process, span.track], span.track))
        event = {
            "ph": "X",
            "name": span.name,
            "pid": pid,
            "tid": tracks[span.process, span.track],
            "ts": round(span.start_s * 1e6, 3),
            "dur": round(span.duration_s * 1e6, 3),
        }
        if span.args:
            event["args"] = dict(span.args)
        events.append(event)
    return {"traceEvents": names + events, "displayTimeUnit": "ms"}


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
