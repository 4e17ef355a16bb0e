"""How long finished jobs, their logs, and their checkpoints are kept.

[Note: files first]
A job's files are deleted before the event that says so is written.  If the controller is killed in between, the job is
still listed and the next purge finishes the work; in the other order its files would be left behind forever.
"""

from __future__ import annotations

import logging
import shutil
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from weft.control.state import State
from weft.core.events import Event, JobsPurged
from weft.core.status_rows import PurgeRow
from weft.daemon.disk import low_in_words, size_bytes
from weft.daemon.home import Home
from weft.daemon.inbox import Maker
from weft.errors import WeftError
from weft.process.failpoints import failpoint
from weft.store import Journal

_log = logging.getLogger(__name__)

_CHECK_EVERY_S = 30.0
_PURGE_EVERY_S = 3600.0
_MIN_EVERY_S = 0.1
_MAX_TRIES = 3


class Retention:
    """Purges on request, and automatically jobs that finished more than ``keep_s`` ago (unless it is ``None``)."""

    def __init__(
        self,
        home: Home,
        journal: Journal,
        request: Callable[[Maker], Future[Any]],
        finished: threading.Event,
        keep_s: float | None,
    ) -> None:
        self._home, self._journal, self._request, self._finished = home, journal, request, finished
        self._keep_s = keep_s
        self._lock = threading.Lock()

    def start(self) -> None:
        """Watch the disk from now on, in a separate thread."""
        threading.Thread(target=self._run, name="weft-retention", daemon=True).start()

    def purge(self, older_than_s: float, *, dry_run: bool) -> PurgeRow:
        """Delete jobs that finished longer ago than this."""
        with self._lock:
            ids, cutoff_s = self._request(lambda state, now_s: ((), _over_since(state, now_s - older_than_s))).result()
            sizes = {job_id: size_bytes(self._home.job_folder(job_id)) for job_id in ids}
            if dry_run or not ids:
                return {"jobs": ids, "freed_bytes": sum(sizes.values()), "problems": []}
            problems = {job_id: words for job_id in ids if (words := _deleted(self._home.job_folder(job_id)))}
            gone = [job_id for job_id in ids if job_id not in problems]
            failpoint("purge.before_event")
            self._request(lambda state, now_s: ([JobsPurged(now_s, tuple(gone))], None)).result()
            self._request(lambda state, now_s: self._compacted(state, cutoff_s)).result()
            freed_bytes = sum(sizes[job_id] for job_id in gone)
            return {"jobs": gone, "freed_bytes": freed_bytes, "problems": list(problems.values())}

    def _compacted(self, state: State, cutoff_s: float) -> tuple[Sequence[Event], None]:
        """Runs in the loop's thread, where the state is the one after the newest event."""
        self._journal.save_snapshot(self._journal.seq, state)
        self._journal.compact(cutoff_s)
        return (), None

    def _run(self) -> None:
        # Keeping jobs for less than an hour means purging more than once an hour.
        purge_every_s = _PURGE_EVERY_S if self._keep_s is None else min(_PURGE_EVERY_S, self._keep_s)
        check_every_s = max(min(_CHECK_EVERY_S, purge_every_s), _MIN_EVERY_S)
        warned = ""
        purge_in_s = 0.0
        while not self._finished.wait(check_every_s):
            warning = low_in_words(self._home)
            if bool(warning) != bool(warned):
                _log.warning("%s", warning or f"the disk of {self._home.root} has free space again")
            warned = warning
            purge_in_s -= check_every_s
            if self._keep_s is not None and purge_in_s <= 0:
                purge_in_s = purge_every_s
                self._purge_by_rule(self._keep_s)

    def _purge_by_rule(self, keep_s: float) -> None:
        try:
            done = self.purge(keep_s, dry_run=False)
        except (WeftError, OSError) as error:
            _log.warning("finished jobs were not purged, retrying later: %s", error)
            return
        if done["jobs"] or done["problems"]:
            problems = "; ".join(done["problems"])
            _log.info("purged %d jobs, %d bytes; %s", len(done["jobs"]), done["freed_bytes"], problems)


def _over_since(state: State, cutoff_s: float) -> tuple[list[str], float]:
    ids = [job.id for job in state.jobs.finished if job.finished_s is not None and job.finished_s <= cutoff_s]
    return ids, cutoff_s


def _deleted(folder: Path) -> str:
    """Delete a job's folder; returns why it could not be deleted, or ""."""
    problem = ""
    for _ in range(_MAX_TRIES):
        try:
            if folder.is_symlink():
                folder.unlink()
            elif folder.exists():
                shutil.rmtree(folder)
            return ""
        except OSError as error:  # perhaps the last lines of its history were being written
            problem = f"{folder} cannot be deleted ({error.strerror}): its job is kept"
    return problem
