"""Mistakes that must not end the loop: each is contained, logged, counted, and put down to its job."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

from weft.daemon.metrics import Metrics

AN_EVENT = "an event"
"""Where it went wrong: the reducer failed on an event, which was left out."""

_log = logging.getLogger(__name__)


class Faults:
    """One loop's."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self.num_contained = 0
        self.num_events_left_out = 0
        self.by_job: dict[str, str] = {}
        """What went wrong last with a job, in words."""

    @contextlib.contextmanager
    def contained(self, where: str, job_id: str | None = None) -> Iterator[None]:
        """Let nothing that goes wrong in the block out of it."""
        try:
            yield
        except Exception as error:
            self.note(where, error, job_id)

    def note(self, where: str, error: Exception, job_id: str | None = None) -> None:
        """Something went wrong, and the loop goes on."""
        self.num_contained += 1
        self.num_events_left_out += where == AN_EVENT
        self._metrics.faults.labels(where).inc()
        words = f"{type(error).__name__}: {error}"[:300]
        if job_id is not None:
            self.by_job[job_id] = f"weft made a mistake with this job, see controller.log ({where}: {words})"
        about = f" (job {job_id})" if job_id is not None else ""
        # In one piece, so that the log's filter tells one fault from another.
        _log.error(f"{where}{about} failed and was left out: {words}", exc_info=error)
