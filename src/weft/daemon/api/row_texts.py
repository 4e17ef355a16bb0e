"""The list of jobs as JSON.  Only rows that changed are encoded again: most jobs of a long list wait or are over."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence

from weft.control.queue_order import QueuePlace
from weft.control.state import Job
from weft.daemon.api.rows import job_row, times_s


class RowTexts:
    """May be used by several threads: each call replaces what the last one kept."""

    def __init__(self) -> None:
        self._kept: dict[str, tuple[Job, QueuePlace | None, tuple[str, str]]] = {}

    def jobs(self, jobs: Sequence[Job], queue: Mapping[str, QueuePlace]) -> bytes:
        """``{"jobs": [...]}`` with a row for each."""
        before, kept = self._kept, {}
        for job in jobs:
            known, place = before.get(job.id), queue.get(job.id)
            # A job never changes: a new state is a new object.
            is_same = known is not None and known[0] is job and known[1] == place
            kept[job.id] = known if known and is_same else (job, place, _texts(job, queue))
        self._kept = kept
        now_s = time.time()
        return f'{{"jobs":[{",".join(_row(job, *texts, now_s) for job, _, texts in kept.values())}]}}'.encode()


def _texts(job: Job, queue: Mapping[str, QueuePlace]) -> tuple[str, str]:
    """The row before and after the fields that change with time."""
    names, values = zip(*job_row(job, queue).items(), strict=True)
    cut = names.index("waited_s")
    head, tail = (dict(zip(names[part], values[part], strict=True)) for part in (slice(cut), slice(cut + 2, None)))
    texts = (json.dumps(part, allow_nan=False, separators=(",", ":")) for part in (head, tail))
    return next(texts)[:-1], next(texts)[1:]


def _row(job: Job, before: str, after: str, now_s: float) -> str:
    waited_s, ran_s = times_s(job, now_s)
    return f'{before},"waited_s":{waited_s!r},"ran_s":{ran_s!r},{after}'
