"""Errors that must not end the loop, and a log that they cannot flood."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator

from weft.daemon.metrics import Metrics

AN_EVENT = "an event"
"""Where it happened: the reducer failed on an event, which was skipped."""

MAX_REPEATS = 5
WINDOW_S = 60.0
_MAX_KINDS = 1000

_log = logging.getLogger(__name__)


class Faults:
    """Contains errors of one loop: each is logged, counted, and shown with its job."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self.num_contained = 0
        self.num_events_left_out = 0
        self.by_job: dict[str, str] = {}
        """The last error with each job, in words."""

    @contextlib.contextmanager
    def contained(self, where: str, job_id: str | None = None) -> Iterator[None]:
        """Let no exception leave the block."""
        try:
            yield
        except Exception as error:
            self.note(where, error, job_id)

    def note(self, where: str, error: Exception, job_id: str | None = None) -> None:
        self.num_contained += 1
        self.num_events_left_out += where == AN_EVENT
        self._metrics.faults.labels(where).inc()
        words = f"{type(error).__name__}: {error}"[:300]
        if job_id is not None:
            self.by_job[job_id] = f"internal error with this job, see controller.log ({where}: {words})"
        about = f" (job {job_id})" if job_id is not None else ""
        # Formatted here, so that the log's filter can tell one fault from another.
        _log.error(f"{where}{about} failed and was skipped: {words}", exc_info=error)


class Repeats(logging.Filter):
    """Passes :data:`MAX_REPEATS` warnings or errors of a kind per :data:`WINDOW_S`; the next one says how many were
    left out.  A kind is a logger and a message template."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._now = now
        self._kinds: dict[tuple[str, str], tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.WARNING:
            return True
        kind = record.name, str(record.msg)
        now_s = self._now()
        since_s, num = self._kinds.get(kind, (now_s, 0))
        num_left_out = 0
        if now_s - since_s >= WINDOW_S:
            num_left_out, since_s, num = max(num - MAX_REPEATS, 0), now_s, 0
        if len(self._kinds) >= _MAX_KINDS:
            self._kinds.clear()
        self._kinds[kind] = since_s, num + 1
        if num >= MAX_REPEATS:
            return False
        if num_left_out:
            record.msg, record.args = f"{record.getMessage()} (and {num_left_out} more like this before)", ()
        return True
