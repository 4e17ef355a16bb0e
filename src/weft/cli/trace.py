"""``weft trace FILE...``: summarize recorded step timelines, or merge those of several workers into one file.

``weft trace ID``: when, where, and why a job of the controller ran.
"""

from __future__ import annotations

import json
import math
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from weft.cli import render
from weft.cli.verb import Json, connect
from weft.core.chrome_trace import Span, spans_of, write_chrome_trace
from weft.core.command_line import Argument, Option
from weft.core.plural import plural
from weft.core.status_rows import DecisionRow, JobDetail
from weft.daemon.ids import is_id
from weft.errors import InputError
from weft.perf.timeline import WorkerSummary, bars, median_step, summarize

BAR_WIDTH = 60
_MIN_WAIT_S = 1.0
"""A job that got devices immediately did not wait."""
EXPECTED = "expected a trace written by `with handle.trace(path):` around some training steps"
COLUMNS = ("worker", "steps", "step ms", "forward", "backward", "update", "comm.", "exposed", "hidden")
LEGEND = "F forward  B backward  U update  . waiting  |  R reduce-scatter  G all-gather  A all-reduce"


@dataclass(frozen=True, slots=True)
class Stay:
    """A period in which a job had the same devices, or none."""

    start_s: float
    end_s: float
    devices: tuple[int, ...]
    reason: str = ""

    @property
    def name(self) -> str:
        return plural(len(self.devices), "worker") if self.devices else "waiting"

    def row(self) -> dict[str, object]:
        return {
            "start_s": self.start_s,
            "end_s": self.end_s,
            "workers": len(self.devices),
            "devices": list(self.devices),
            "reason": self.reason,
        }


def trace(
    files: Annotated[list[Path], Argument("FILE", "traces, one per worker; or one job ID")],
    out: Annotated[Path | None, Option("write one merged trace for Perfetto to FILE", "none", metavar="FILE")] = None,
    as_json: Json = False,
) -> None:
    """Show where the time of a training step went, worker by worker.

    Times are medians over the steps in the file, in milliseconds. "exposed" is the time compute waited for the network;
    "hidden" is the share of communication that overlapped with compute. The median step of each worker is drawn, all on
    one scale. Each file's clock starts at its own first step.

    With a job ID: which devices the job had, when, and why, as far back as the running controller remembers.
    """
    if len(files) == 1 and not files[0].exists() and _may_be_a_job(str(files[0])):
        _trace_job(str(files[0]), as_json=as_json, out=out)
        return
    spans = _joined({file: read_spans(file) for file in files})
    summaries = summarize(spans)
    if out is not None:
        _write(out, files, spans)
    if as_json:
        render.print_json({"workers": [_row(summary) for summary in summaries]})
        return
    print(table([_cells(summary) for summary in summaries]))
    lengths_s = {
        one.worker: end_s - start_s for one in summaries for start_s, end_s in [median_step(spans, one.worker)]
    }
    for worker, length_s in lengths_s.items():
        # One scale for all, so that workers can be compared.
        width = max(round(BAR_WIDTH * length_s / max(lengths_s.values())), 1)
        print()
        print(_picture(spans, worker, length_s, width))
    render.print_text(LEGEND)
    if out is not None:
        render.print_text(f"\nmerged into {out}: open it in Perfetto or chrome://tracing")


def _may_be_a_job(word: str) -> bool:
    """Whether this is not a path, and a running controller may know a job by it."""
    return is_id(word) or ("/" not in word and not word.endswith(".json") and connect().home.read_record() is not None)


def _trace_job(word: str, *, as_json: bool, out: Path | None) -> None:
    client = connect()
    job = client.job(word)
    job_id = job["id"]
    lived = stays(job, client.decisions(last=1000), time.time())
    if out is not None:
        _write(out, [], _job_spans(job, lived))
    if as_json:
        render.print_json({"id": job_id, "stays": [stay.row() for stay in lived]})
        return
    if not lived or lived[0].start_s > job["submitted_s"] + _MIN_WAIT_S:
        render.note(
            f"the controller no longer knows on which devices {job_id} ran earlier: `weft explain {job_id}` lists its "
            "attempts"
        )
    render.print_columns([_stay_cells(stay) for stay in lived], ("FROM", "FOR", "WORKERS", "DEVICES", "REASON"))
    if out is not None:
        render.print_text(f"\nwritten to {out}: open it in Perfetto or chrome://tracing")


def _stay_cells(stay: Stay) -> tuple[str, ...]:
    return (
        render.moment(stay.start_s),
        render.duration(stay.end_s - stay.start_s),
        str(len(stay.devices)),
        _ranges(stay.devices) or "-",
        render.plain(stay.reason),
    )


def _ranges(devices: Sequence[int]) -> str:
    """
    >>> _ranges((0, 1, 2, 3, 6, 9, 8))
    '0-3,6,8-9'
    """
    runs: list[list[int]] = []
    for device in sorted(devices):
        if runs and runs[-1][-1] == device - 1:
            runs[-1].append(device)
        else:
            runs.append([device])
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)


def read_spans(file: Path) -> list[Span]:
    """The spans of one file; raises :class:`InputError` if the file is not a trace."""
    name = str(file)
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"cannot be read ({error.strerror}): {EXPECTED}", file=name) from error
    except UnicodeDecodeError as error:
        raise InputError(f"is not text: {EXPECTED}", file=name) from error
    if not text.strip():
        raise InputError(f"is empty: {EXPECTED}", file=name)
    try:
        document = json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError(f"is not JSON ({error.msg}): {EXPECTED}", file=name, line=error.lineno) from error
    except RecursionError as error:
        raise InputError(f"is nested too deeply: {EXPECTED}", file=name) from error
    if not isinstance(document, dict) or not isinstance(document.get("traceEvents"), list):
        raise InputError(f'has no "traceEvents" list: {EXPECTED}', file=name)
    try:
        spans = spans_of(document)
    except (KeyError, TypeError, AttributeError) as error:
        raise InputError(f"has an event without the usual fields ({error}): {EXPECTED}", file=name) from error
    for span in spans:
        if not all(isinstance(text, str) for text in (span.process, span.track, span.name)):
            raise InputError(f"has an event whose name is not a string: {EXPECTED}", file=name)
        if not isinstance(span.args, dict):
            raise InputError(f"the span {span.name!r} has args that are not an object: {EXPECTED}", file=name)
        if not (math.isfinite(span.start_s) and math.isfinite(span.duration_s) and span.duration_s >= 0):
            raise InputError(f"the span {span.name!r} has no valid duration: {EXPECTED}", file=name)
    if not any(span.name == "forward" and span.duration_s > 0 for span in spans):
        raise InputError(f'has no span named "forward": {EXPECTED}', file=name)
    return spans


def _joined(by_file: dict[Path, list[Span]]) -> list[Span]:
    """All spans; a worker that occurs in several files gets the file's name as a suffix."""
    owners = Counter(process for spans in by_file.values() for process in {span.process for span in spans})
    return [
        replace(span, process=f"{span.process} ({file})") if owners[span.process] > 1 else span
        for file, spans in by_file.items()
        for span in spans
    ]


def _write(out: Path, files: Sequence[Path], spans: Sequence[Span]) -> None:
    if any(out.resolve() == file.resolve() for file in files):
        raise InputError("is also one of the input files: choose a different file for --out", file=str(out))
    try:
        write_chrome_trace(out, spans)
    except OSError as error:
        raise InputError(
            f"cannot be written ({error.strerror}): choose a file for --out that you can write", file=str(out)
        ) from error


def _row(summary: WorkerSummary) -> dict[str, object]:
    return {
        "worker": summary.worker,
        "steps": summary.num_steps,
        "step_ms": _ms(summary.step_s),
        "forward_ms": _ms(summary.forward_s),
        "backward_ms": _ms(summary.backward_s),
        "update_ms": _ms(summary.update_s),
        "communication_ms": _ms(summary.communication_s),
        "exposed_ms": _ms(summary.exposed_s),
        "hidden_share": round(summary.hidden_share, 4),
        "bytes_per_step": round(summary.bytes_per_step),
    }


def _cells(summary: WorkerSummary) -> list[str]:
    times = (
        summary.step_s,
        summary.forward_s,
        summary.backward_s,
        summary.update_s,
        summary.communication_s,
        summary.exposed_s,
    )
    shown = [f"{_ms(time):.1f}" for time in times]
    return [summary.worker, str(summary.num_steps), *shown, f"{summary.hidden_share:.0%}"]


def table(rows: Sequence[Sequence[str]]) -> str:
    """An aligned table: the first column to the left, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(COLUMNS, *rows, strict=True)]
    lines = []
    for row in (COLUMNS, *rows):
        cells = [row[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        lines.append("  ".join(cells))
    return "\n".join(lines)


def _picture(spans: Sequence[Span], worker: str, length_s: float, width: int) -> str:
    computed, travelled = bars(spans, worker, width)
    return "\n".join(
        [
            f"{worker}, its median step: {_ms(length_s):.1f} ms",
            f"  compute        |{computed}|",
            f"  communication  |{travelled}|",
        ]
    )


def _ms(seconds: float) -> float:
    return round(seconds * 1e3, 3)


def stays(job: JobDetail, decisions: Sequence[DecisionRow], now_s: float) -> list[Stay]:
    """Where a job was from submission until it finished, or until now.

    A stay starts at the decision, shortly before the workers have stopped and restarted on the new devices.  The
    controller forgets decisions when it restarts: the time before the first one it remembers is left out.
    """
    begin_s = job["submitted_s"]
    end_s = max(job["finished_s"] if job["finished_s"] is not None else now_s, begin_s)
    found: list[Stay] = []
    devices: tuple[int, ...] = ()
    reason = ""
    for decision in decisions:
        at_s = decision["time_s"]
        if not begin_s <= at_s < end_s:
            continue
        wanted = tuple(decision["devices"].get(job["id"], ()))
        why = decision["reasons"].get(job["id"], "")
        if wanted == devices:
            reason = reason or why
            continue
        if devices or at_s - begin_s >= _MIN_WAIT_S:
            found.append(Stay(begin_s, at_s, devices, reason))
        begin_s, devices, reason = at_s, wanted, why
    found.append(Stay(begin_s, end_s, devices, reason))
    first_s = next((stay.start_s for stay in found if stay.devices), math.inf)
    started_s = job["started_s"]
    if started_s is not None and first_s > started_s + _MIN_WAIT_S:
        return [stay for stay in found if stay.start_s >= first_s]
    return found


def _job_spans(job: JobDetail, lived: Sequence[Stay]) -> list[Span]:
    """The same for Perfetto: one track for the job, and one for each of its devices."""
    zero_s = job["submitted_s"]
    found = []
    for stay in lived:
        tracks = ["job", *(f"device {device}" for device in stay.devices)]
        found += [
            Span(job["id"], track, stay.name, stay.start_s - zero_s, stay.end_s - stay.start_s, {"reason": stay.reason})
            for track in tracks
        ]
    return found
