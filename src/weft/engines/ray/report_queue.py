"""The reports of a node's workers until the controller fetches them, usually once a second.

[Note: awaited reports]  The controller resizes a job only after its first reports, and takes their arrival for the end
of its start.  If they waited for the next fetch, free devices would go to jobs that need them less, and a start would
look up to a second longer than it was.  So these few are fetched at once; all others are news of what is known already.
"""

from __future__ import annotations

from collections import deque

from weft.core.step_report import parse_report

NUM_AWAITED = 3
"""Of each attempt: the controller's first measurement is not before the third."""
_MAX_REPORTS = 10_000
_MAX_ATTEMPTS = 10_000


class ReportQueue:
    """Oldest first; the oldest are dropped if nobody fetches them."""

    def __init__(self) -> None:
        self.is_awaited = False
        """Whether the controller waits for one of these."""
        self._waiting: deque[bytes] = deque(maxlen=_MAX_REPORTS)
        self._num_heard: dict[tuple[str, int], int] = {}
        """Of each attempt's first worker, up to ``NUM_AWAITED``."""

    def add(self, data: bytes) -> None:
        self._waiting.append(data)
        report = parse_report(data)
        if report is None or report.rank != 0:
            return  # the controller measures the first worker
        key = report.job_id, report.attempt
        num = self._num_heard.get(key, 0)
        if num < NUM_AWAITED:
            self._num_heard[key] = num + 1
            self.is_awaited = True
            if len(self._num_heard) > _MAX_ATTEMPTS:
                del self._num_heard[next(iter(self._num_heard))]

    def take(self) -> list[bytes]:
        """All of them."""
        taken = list(self._waiting)
        self._waiting.clear()
        self.is_awaited = False
        return taken

    def forget(self, job_id: str, attempt: int) -> None:
        """The attempt is over."""
        self._num_heard.pop((job_id, attempt), None)
