"""All jobs as one immutable value; making the next version is cheap, however long the history.

[Note: shared history]
A new version copies the active jobs, which are few.  Finished jobs never change again, so all versions share one
dictionary that only grows, and each version remembers how much of it existed at the time.  If one version gets two
different successors (in tests), the second one finds the dictionary longer than its own mark and copies its part first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from weft.control.state import Job


class JobTable(Mapping[str, "Job"]):
    """Jobs by id, in order of submission.  Immutable."""

    __slots__ = ("_finished", "_num_finished", "active", "next_number")

    active: Mapping[str, Job]
    """Unfinished jobs, in order of submission."""
    next_number: int
    """Larger than any job's number."""

    def __init__(self, jobs: Iterable[Job] = ()) -> None:
        ordered = sorted(jobs, key=lambda job: job.number)
        self.active = {job.id: job for job in ordered if not job.state.is_final}
        over = [job for job in ordered if job.state.is_final]
        self._finished = {job.id: (place, job) for place, job in enumerate(over)}
        self._num_finished = len(over)
        self.next_number = ordered[-1].number + 1 if ordered else 0

    @property
    def finished(self) -> Iterator[Job]:
        """Finished jobs, in the order in which they ended."""
        return (job for _, job in islice(self._finished.values(), self._num_finished))

    def next_version(self, active: dict[str, Job], newly_finished: Iterable[Job] = ()) -> JobTable:
        """The table with these active jobs (not copied) and more finished ones."""
        table = object.__new__(JobTable)
        table.active = active
        history, mark = self._finished, self._num_finished
        for job in newly_finished:
            if len(history) != mark:
                history = dict(islice(history.items(), mark))
            history[job.id] = (mark, job)
            mark += 1
        table._finished, table._num_finished = history, mark
        newest = next(reversed(active.values()), None)
        table.next_number = max(self.next_number, 0 if newest is None else newest.number + 1)
        return table

    def __getitem__(self, job_id: str) -> Job:
        job = self.active.get(job_id)
        if job is not None:
            return job
        place, over = self._finished[job_id]
        if place >= self._num_finished:
            raise KeyError(job_id)
        return over

    def __len__(self) -> int:
        return len(self.active) + self._num_finished

    def in_order(self) -> list[Job]:
        """Like ``values``, without a lookup for each job."""
        together = [*self.finished, *self.active.values()]
        together.sort(key=lambda job: job.number)
        return together

    def __iter__(self) -> Iterator[str]:
        return (job.id for job in self.in_order())

    def __repr__(self) -> str:
        return f"JobTable({len(self.active)} active, {self._num_finished} finished)"
