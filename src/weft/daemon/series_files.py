"""The histories of all jobs: each in a file in its job's folder, and those of active jobs also in memory.

[Note: what a kill costs]
A thread appends what is new every :data:`_WRITE_EVERY_S` seconds, so a killed controller loses at most those last
seconds of points.  Marks follow from the journal: a start or an end that the file lacks is added when it is next read.
The files are deleted with the job's folder.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence

from weft.control.state import Job, State
from weft.core.events import Event, Fate, WorkersExited, WorkersStarted
from weft.core.plural import plural
from weft.core.status_rows import HistoryRow, SpeedRow
from weft.core.step_report import StepReport
from weft.daemon.home import Home, write_whole
from weft.daemon.job_series import JobMark, JobSeries

_log = logging.getLogger(__name__)

_WRITE_EVERY_S = 2.0


class SeriesFiles:
    """The loop's thread notes what happens; any thread may read."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._lock = threading.Lock()
        self._series: dict[str, JobSeries] = {}
        self._changed: set[str] = set()
        self._over: set[str] = set()
        """Finished jobs whose series is still to be written."""
        self._writing = threading.Lock()
        self._ended = threading.Event()
        self._warned = False

    def start(self) -> None:
        """Write from now on, in a separate thread."""
        threading.Thread(target=self._run, name="weft-history", daemon=True).start()

    def close(self) -> None:
        """Write everything."""
        self._ended.set()
        self.write()

    # What happens: called by the loop's thread --------------------------------------------------------------------

    def reported(self, job: Job, report: StepReport, now_s: float) -> None:
        series = self._of(job)
        with self._lock:
            series.reported(report, now_s)
            self._changed.add(job.id)

    def happened(self, before: State, after: State, events: Sequence[Event]) -> None:
        """Add marks for what these events, which were just written, changed."""
        for event in events:
            if isinstance(event, WorkersStarted):
                job = before.jobs.active.get(event.job_id)
                if job is not None and job.attempt == event.attempt:
                    self._mark(job, _started(job, event.at_s))
            elif isinstance(event, WorkersExited) and event.fate in (Fate.FAILED, Fate.LOST):
                job = after.jobs.active.get(event.job_id)
                if job is not None:
                    words = "failed" if event.fate is Fate.FAILED else "was lost"
                    self._of(job).last_end = f"{words}: {event.reason}" if event.reason else words
        if before.jobs.active is after.jobs.active:
            return
        for job_id, job in before.jobs.active.items():
            now = after.jobs.active.get(job_id)
            if now is job:
                continue
            if now is None:
                self._finished(after.jobs.get(job_id))
            elif now.partner != job.partner:
                self._mark(now, _pairing(now, job, after))

    def learned(self, job: Job, speeds: list[SpeedRow]) -> None:
        """The job is over, and these speeds are about to be forgotten."""
        series = self._of(job)
        with self._lock:
            series.learned(speeds)

    def _finished(self, job: Job | None) -> None:
        if job is None or not job.attempt:
            return  # one that never ran has no series; its end is in the state
        self._mark(job, _finish(job))
        with self._lock:
            self._over.add(job.id)

    def _mark(self, job: Job, mark: JobMark) -> None:
        series = self._of(job)
        with self._lock:
            series.mark(mark)
            self._changed.add(job.id)

    def _of(self, job: Job) -> JobSeries:
        """The series of an active job; after a restart of the controller, read from its file."""
        with self._lock:
            series = self._series.get(job.id)
        if series is None:
            series = self._read(job)
            with self._lock:
                self._series[job.id] = series
        return series

    # Reading -------------------------------------------------------------------------------------------------------

    def row(self, job: Job, speeds: list[SpeedRow] | None) -> HistoryRow:
        """The job's history.  ``speeds``: what is known now; ``None`` once the job is over."""
        with self._lock:
            series = self._series.get(job.id)
            if series is not None:
                return _row(job, series, speeds)
        return _row(job, self._read(job), speeds)

    def _read(self, job: Job) -> JobSeries:
        try:
            series = JobSeries.restored(self._home.history_file(job.id).read_text(errors="replace"))
        except OSError:
            series = JobSeries()
        if job.workers_since_s is not None and series.last_started < job.attempt:
            series.mark(_started(job, job.workers_since_s))
        return series

    # Writing -------------------------------------------------------------------------------------------------------

    def write(self) -> None:
        """Append what is new."""
        with self._writing:
            with self._lock:
                changed, self._changed = self._changed, set()
                over, self._over = self._over, set()
            for job_id in changed:
                with self._lock:
                    text, whole = self._series[job_id].unwritten()
                written = self._write_file(job_id, text, whole=whole)
                with self._lock:
                    if not written:
                        self._series[job_id].not_written()
                        self._changed.add(job_id)
                        self._over |= {job_id} & over
                    elif job_id in over:
                        del self._series[job_id]

    def _write_file(self, job_id: str, text: str, *, whole: bool) -> bool:
        path = self._home.history_file(job_id)
        try:
            if whole:
                write_whole(path, text.encode())
            else:
                with path.open("a") as file:
                    file.write(text)
        except FileNotFoundError:
            return True  # the job's folder was deleted, and its history with it
        except OSError as error:
            if not self._warned:
                _log.warning("the history of job %s cannot be written, retrying: %s", job_id, error)
            self._warned = True
            return False
        self._warned = False
        return True

    def _run(self) -> None:
        while not self._ended.wait(_WRITE_EVERY_S):
            try:
                self.write()
            except Exception:
                _log.exception("histories were not written; retrying")


def _row(job: Job, series: JobSeries, speeds: list[SpeedRow] | None) -> HistoryRow:
    marks = [mark.row() for mark in series.marks]
    if job.finished_s is not None and (not marks or marks[-1]["kind"] != "finished"):
        marks.append(_finish(job).row())
    return {
        "id": job.id,
        "points": series.point_rows(),
        "marks": marks,
        "speeds": series.speeds if speeds is None else speeds,
        "phases": series.phases,
    }


def _started(job: Job, at_s: float) -> JobMark:
    num = len(job.devices)
    return JobMark(at_s, "started", num, f"started with {plural(num, 'worker')}", job.attempt)


def _finish(job: Job) -> JobMark:
    state = job.state.value.lower()
    text = job.reason if job.reason.startswith(state) else f"{state}: {job.reason}"
    return JobMark(job.finished_s or 0.0, "finished", 0, text, job.attempt)


def _pairing(now: Job, before: Job, state: State) -> JobMark:
    kind = "unpaired" if now.partner is None else "paired"
    other_id = now.partner or before.partner or ""
    other = state.jobs.get(other_id)
    name = other.name or other_id if other is not None else other_id
    verb = "no longer shares" if now.partner is None else "shares"
    return JobMark(state.now_s, kind, len(now.devices), f"{verb} its devices with {name}", now.attempt)
