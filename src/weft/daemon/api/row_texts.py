"""Jobs as JSON.  A row is encoded again only if its job changed: most jobs of a long list wait or are over."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence

from weft.control.queue_order import QueuePlace
from weft.control.state import Job, JobState
from weft.daemon.api.rows import job_row, shown_place, times_s

LIVE_FIELDS = ("waited_s", "ran_s", "queue_position", "expected_start_s")
"""What changes although the job itself does not; next to each other in every row of a job."""
_LIVE = '"{}":%r,"{}":%r,"{}":%s,"{}":%s'.format(*LIVE_FIELDS)


class RowTexts:
    """May be used by several threads: each call replaces what the last one kept."""

    def __init__(self) -> None:
        self._kept: dict[str, tuple[Job, RowText]] = {}

    def jobs(self, jobs: Sequence[Job], queue: Mapping[str, QueuePlace]) -> bytes:
        """``{"jobs": [...]}`` with a row for each."""
        before, kept = self._kept, {}
        for job in jobs:
            known = before.get(job.id)
            # A job never changes: a new state is a new object.
            kept[job.id] = known if known and known[0] is job else (job, RowText(job_row(job, queue)))
        self._kept = kept
        now_s = time.time()
        return f'{{"jobs":[{",".join(text.at(job, queue, now_s) for job, text in kept.values())}]}}'.encode()


class RowText:
    """One job's row, encoded except for :data:`LIVE_FIELDS`."""

    __slots__ = ("_after", "_before")

    def __init__(self, row: Mapping[str, object]) -> None:
        names = list(row)
        cut = names.index(LIVE_FIELDS[0])
        self._before = _encoded({name: row[name] for name in names[:cut]})[:-1]
        self._after = _encoded({name: row[name] for name in names[cut + len(LIVE_FIELDS) :]})[1:]

    def at(self, job: Job, queue: Mapping[str, QueuePlace], now_s: float) -> str:
        """The whole row at this time."""
        waited_s, ran_s = times_s(job, now_s)
        position, start_s = shown_place(queue.get(job.id) if job.state is JobState.PENDING else None)
        live = _LIVE % (waited_s, ran_s, _number(position), _number(start_s))
        return f"{self._before},{live},{self._after}"


def _number(value: float | None) -> str:
    return "null" if value is None else repr(value)


def _encoded(row: Mapping[str, object]) -> str:
    return json.dumps(row, allow_nan=False, separators=(",", ":"))
