"""The history of one job in numbers: bounded, however long the job runs.

Reports that are close together share one point.  When there are too many points, neighbors are merged and the time
between points doubles, so that the points always cover the whole life of the job.  No I/O: see ``series_files.py``.
"""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass, field, replace
from typing import Any, cast

from weft.core.plain_json import real
from weft.core.plural import plural
from weft.core.status_rows import HistoryPoint, MarkRow, PhasesRow, SpeedRow
from weft.core.step_report import StepReport

MAX_POINTS = 500
MAX_MARKS = 500
_FIRST_INTERVAL_S = 1.0
_MAX_TEXT = 200
_RECENT_REPORTS = 32
STARTS = frozenset({"started", "resized", "restarted"})


@dataclass(frozen=True, slots=True)
class Point:
    """Reports of one attempt, averaged."""

    time_s: float
    """Of the newest report, like ``step``."""
    attempt: int
    workers: int
    step: int
    num_reports: int
    step_s: float
    exposed_s: float | None
    loss: float | None
    memory_bytes: int

    def merged(self, later: Point) -> Point:
        """Both points as one, in place of the later one."""
        mine, its = self.num_reports, later.num_reports
        return replace(
            later,
            num_reports=mine + its,
            step_s=_mean(mine, self.step_s, its, later.step_s) or 0.0,
            exposed_s=_mean(mine, self.exposed_s, its, later.exposed_s),
            loss=_mean(mine, self.loss, its, later.loss),
            memory_bytes=max(self.memory_bytes, later.memory_bytes),
        )


def _mean(num: int, value: float | None, num_later: int, later: float | None) -> float | None:
    if value is None or later is None:
        return later if value is None else value
    mean = (num * value + num_later * later) / (num + num_later)
    return mean if math.isfinite(mean) else later  # a job may report any number


@dataclass(frozen=True, slots=True)
class JobMark:
    """Something that happened to the job's workers."""

    time_s: float
    kind: str
    """started, resized, restarted, paired, unpaired, finished."""
    workers: int
    text: str
    attempt: int = 0

    def row(self) -> MarkRow:
        return {"time_s": self.time_s, "kind": self.kind, "workers": self.workers, "text": self.text}


@dataclass
class JobSeries:
    """Points, marks, and what was learned about the job's speed."""

    points: list[Point] = field(default_factory=list)
    marks: list[JobMark] = field(default_factory=list)
    speeds: list[SpeedRow] = field(default_factory=list)
    phases: PhasesRow | None = None
    interval_s: float = _FIRST_INTERVAL_S
    last_end: str = ""
    """How the last attempt ended, if that was not requested."""
    _point_ends_s: float = 0.0
    _memory_bytes: int = 0
    _recent: deque[tuple[float | None, ...]] = field(default_factory=lambda: deque(maxlen=_RECENT_REPORTS))
    _lines: list[str] = field(default_factory=list)
    """Lines to append to the file; ignored if ``_rewrite``."""
    _rewrite: bool = False
    _num_written: int = 0
    _open_is_dirty: bool = False

    # What happens --------------------------------------------------------------------------------------------------

    def reported(self, report: StepReport, now_s: float) -> None:
        """A report of any worker: memory is the maximum over all workers; everything else comes from the first."""
        self._memory_bytes = max(self._memory_bytes, report.memory_bytes)
        if report.rank != 0:
            return
        measures_waits = report.phases is not None or report.takes_turns
        point = Point(
            now_s,
            report.attempt,
            report.world_size,
            report.progress.step,
            1,
            report.progress.step_s,
            report.progress.exposed_s if measures_waits else None,
            report.progress.loss,
            self._memory_bytes,
        )
        self._memory_bytes = 0
        if measures_waits:
            self._note_phases(report)
        last = self.points[-1] if self.points else None
        if last is not None and now_s < self._point_ends_s and last.attempt == point.attempt:
            self.points[-1] = last.merged(point)
        else:
            self._close_point()
            self.points.append(point)
            self._point_ends_s = now_s + self.interval_s
            self._thin()
        self._open_is_dirty = True

    def mark(self, mark: JobMark) -> None:
        if mark.kind == "started" and any(one.kind in STARTS for one in self.marks):
            before = next(one.workers for one in reversed(self.marks) if one.kind in STARTS)
            mark = _restart(mark, before, self.last_end)
        if mark.kind in STARTS:
            self.last_end = ""
        mark = replace(mark, text=mark.text[:_MAX_TEXT])
        self.marks.append(mark)
        self._lines.append(_line("mark", *astuple(mark)))
        if len(self.marks) > MAX_MARKS:
            del self.marks[1 : 2 + MAX_MARKS // 10]  # the first one stays: it is the beginning
            self._rewrite = True

    def learned(self, speeds: list[SpeedRow]) -> None:
        """The final speeds, before the controller forgets what it learned about the job."""
        self.speeds = speeds
        self._lines.append(_line("speeds", self.speeds))

    @property
    def last_started(self) -> int:
        """The newest attempt that has a mark; 0 before the first."""
        return max((one.attempt for one in self.marks if one.kind in STARTS), default=0)

    def _note_phases(self, report: StepReport) -> None:
        forward_s, backward_s, update_s = report.phases or (None, None, None)
        self._recent.append((forward_s, backward_s, report.progress.exposed_s, update_s, report.turn_wait_s))
        means = map(_mean_of, zip(*self._recent, strict=True))
        self.phases = cast(PhasesRow, dict(zip(PhasesRow.__annotations__, means, strict=True)))

    def _thin(self) -> None:
        if len(self.points) <= MAX_POINTS:
            return
        *pairs, newest = self.points
        merged = [one.merged(two) for one, two in zip(pairs[::2], pairs[1::2], strict=False)]
        self.points = [*merged, *pairs[len(pairs) // 2 * 2 :], newest]
        # New points are as far apart as the remaining ones, so that no part of the job's life is drawn more coarsely.
        self.interval_s = max(2 * self.interval_s, (newest.time_s - self.points[0].time_s) / (MAX_POINTS / 2))
        self._rewrite = True

    # The file ------------------------------------------------------------------------------------------------------

    def _close_point(self) -> None:
        if self._open_is_dirty:
            self._lines.append(self._point_line(len(self.points) - 1))
            self._open_is_dirty = False

    def _point_line(self, index: int) -> str:
        return _line("point", index, *astuple(self.points[index]))

    def unwritten(self) -> tuple[str, bool]:
        """What the file lacks, and whether it replaces the whole file.  The caller writes it."""
        if self._open_is_dirty and self.phases is not None:
            self._lines.append(_line("phases", self.phases))
        self._close_point()
        if self._num_written + len(self._lines) > 4 * (MAX_POINTS + MAX_MARKS):
            self._rewrite = True  # the point that is still growing is written again and again
        if not self._rewrite:
            lines, self._lines = self._lines, []
            self._num_written += len(lines)
            return "".join(lines), False
        self._lines.clear()
        lines = [_line("interval", self.interval_s)]
        lines += [_line("mark", *astuple(one)) for one in self.marks]
        lines += [self._point_line(index) for index in range(len(self.points))]
        lines += [_line("speeds", self.speeds), _line("phases", self.phases)]
        self._num_written, self._rewrite = len(lines), False
        return "".join(lines), True

    def not_written(self) -> None:
        """The last write failed: next time, write everything."""
        self._rewrite = True

    @classmethod
    def restored(cls, text: str) -> JobSeries:
        """The series in a file; lines that were cut off or damaged are skipped."""
        series = cls(_rewrite=bool(text) and not text.endswith("\n"))
        for line in text.splitlines():
            try:
                kind, *values = json.loads(line)
                series._take(kind, values)
            except (ValueError, TypeError, KeyError, IndexError):
                series._rewrite = True
        series._num_written = text.count("\n")
        series.points, series.marks = series.points[:MAX_POINTS], series.marks[:MAX_MARKS]
        return series

    def _take(self, kind: str, values: Sequence[Any]) -> None:
        if kind == "point":
            if any(value is not None and real(value) is None for value in values):
                raise ValueError("not a number")
            index, point = values[0], Point(*values[1:])
            if index == len(self.points):
                self.points.append(point)
            else:
                self.points[index] = point
        elif kind == "mark":
            self.marks.append(JobMark(*values))
        elif kind == "interval":
            self.interval_s = float(values[0])
        elif kind == "speeds":
            (self.speeds,) = values
        elif kind == "phases":
            (self.phases,) = values

    # What is shown -------------------------------------------------------------------------------------------------

    def point_rows(self) -> list[HistoryPoint]:
        return [
            {
                "time_s": point.time_s,
                "step": point.step,
                "loss": point.loss,
                "step_s": point.step_s or None,
                "steps_per_s": _steps_per_s(before, point),
                "exposed_share": _share(point),
                "workers": point.workers,
                "memory_bytes": point.memory_bytes or None,
            }
            for before, point in zip((None, *self.points), self.points, strict=False)
        ]


def _line(*values: object) -> str:
    return json.dumps(values, separators=(",", ":"), allow_nan=False) + "\n"


def _mean_of(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _share(point: Point) -> float | None:
    return None if point.exposed_s is None or not point.step_s else min(point.exposed_s / point.step_s, 1.0)


def _steps_per_s(before: Point | None, point: Point) -> float | None:
    """Progress since the previous point, if it is of the same attempt; otherwise derived from the step time."""
    if before is not None and before.attempt == point.attempt:
        elapsed_s = point.time_s - before.time_s
        if elapsed_s > 0 and point.step >= before.step:
            return (point.step - before.step) / elapsed_s
    return 1.0 / point.step_s if point.step_s else None


def _restart(mark: JobMark, before: int, last_end: str) -> JobMark:
    why = f" after it {last_end}" if last_end else ""
    if mark.workers == before:
        text = f"restarted with {plural(mark.workers, 'worker')}{why}"
        return replace(mark, kind="restarted", text=text)
    return replace(mark, kind="resized", text=f"resized from {before} to {plural(mark.workers, 'worker')}{why}")
