"""What a restart costs each job: from the order to stop until its last worker has exited, plus from the order to start
until its first report.  Time in the queue in between does not count."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from weft.perf.restart import RestartCost


@dataclass
class _Pending:
    """A restart in progress."""

    stop_s: float | None = None
    stopping_s: float = 0.0
    start_s: float | None = None


class RestartTimes:
    """Of all active jobs, and over all jobs together for those that were never restarted."""

    def __init__(self, prior_s: float) -> None:
        self._overall = RestartCost(prior_s)
        self._jobs: dict[str, RestartCost] = {}
        self._pending: dict[str, _Pending] = {}

    def estimate_s(self, job_id: str) -> float:
        return self._jobs.get(job_id, self._overall).estimate_s

    def stop_ordered(self, job_id: str, now_s: float) -> None:
        self._pending[job_id] = _Pending(stop_s=now_s)

    def stopped(self, job_id: str, now_s: float) -> None:
        """The workers are gone."""
        pending = self._pending.get(job_id)
        if pending is not None and pending.stop_s is not None:
            self._pending[job_id] = _Pending(stopping_s=now_s - pending.stop_s)

    def start_ordered(self, job_id: str, now_s: float) -> None:
        self._pending.setdefault(job_id, _Pending()).start_s = now_s

    def started(self, job_id: str, now_s: float) -> None:
        """The workers exist.  A first start may have waited for the engine to warm up; a restart does not."""
        pending = self._pending.get(job_id)
        if pending is not None and pending.start_s is not None and job_id not in self._jobs:
            pending.start_s = now_s

    def reported(self, job_id: str, now_s: float) -> None:
        """The first report of an attempt: the restart is over."""
        pending = self._pending.get(job_id)
        if pending is None or pending.start_s is None:
            return
        took_s = max(pending.stopping_s + now_s - pending.start_s, 0.0)
        known = self._jobs.get(job_id)
        # Before any restart, the first start is the best estimate of its cost.
        self._jobs[job_id] = RestartCost(prior_s=took_s) if known is None else known.observed(took_s)
        self._overall = self._overall.observed(took_s)
        del self._pending[job_id]

    def forget(self, job_id: str) -> None:
        """The job is over."""
        self._jobs.pop(job_id, None)
        self._pending.pop(job_id, None)

    def document(self) -> list[float]:
        """The restarts of all jobs, as plain data for a JSON file."""
        return list(self._overall.seen_s)

    def job_document(self, job_id: str) -> list[Any] | None:
        """The same for one job."""
        cost = self._jobs.get(job_id)
        return None if cost is None else [cost.prior_s, list(cost.seen_s)]

    def restore(self, document: Iterable[Any], jobs: Mapping[str, Any]) -> None:
        """Take both kinds of documents; raises ``ValueError`` and the like if one is invalid."""
        self._overall = RestartCost(self._overall.prior_s, tuple(map(float, document)))
        for job_id, cost in jobs.items():
            if cost:
                self._jobs[job_id] = RestartCost(float(cost[0]), tuple(map(float, cost[1])))
