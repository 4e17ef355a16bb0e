"""The next state while it is being built.  Lives inside one call of ``reducer.reduce``.

This module has what all events share: how a job gets and releases devices, how it ends, which jobs can start.  The
reducer decides which event leads to which of these.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import chain
from typing import Any

from weft.control.job_table import JobTable
from weft.control.state import Job, JobState, State
from weft.control.transitions import LEGAL, check_transition
from weft.core.actions import Action, Decide, StartWorkers
from weft.core.reason import Reason, code_of, in_words


def altered(job: Job, changes: dict[str, Any]) -> Job:
    """``dataclasses.replace`` at a tenth of its cost: jobs change a million times in a long replay."""
    new = object.__new__(Job)
    object.__setattr__(new, "__dict__", job.__dict__ | changes)
    return new


def because(reason: Reason) -> dict[str, Any]:
    """The reason as changes to a job."""
    return {"reason": in_words(reason), "reason_code": code_of(reason)}


def _set_back(job: Job, now_s: float, by_s: float) -> Job:
    def corrected(at_s: float, not_before_s: float = 0.0) -> float:
        return max(at_s - by_s, not_before_s) if at_s > now_s else at_s

    submitted_s = corrected(job.submitted_s)
    changes: dict[str, Any] = {
        "spec": replace(job.spec, submitted_s=submitted_s),
        "changed_s": corrected(job.changed_s, submitted_s),
    }
    for name in ("started_s", "workers_since_s", "finished_s"):
        at_s = getattr(job, name)
        changes[name] = None if at_s is None else corrected(at_s, submitted_s)
    return altered(job, changes)


class Draft:
    """A working copy of a state; its active jobs are copied when the first one changes."""

    __slots__ = ("_before", "_finished", "_own", "_purged", "_set_back_s", "actions", "active", "cluster", "now_s")

    def __init__(self, before: State, at_s: float) -> None:
        self._before = before
        self._own: dict[str, Job] | None = None
        self._finished: list[Job] = []
        self._purged: frozenset[str] = frozenset()
        self._set_back_s = 0.0
        self.active = before.jobs.active
        self.cluster = before.cluster
        # A clock that was set back does not undo what happened; NaN compares false and changes nothing.
        self.now_s = at_s if at_s > before.now_s else before.now_s
        self.actions: list[Action] = []

    def state(self) -> State:
        """The result."""
        before = self._before
        jobs = before.jobs if self._own is None else before.jobs.next_version(self._own, self._finished)
        if self._purged:
            jobs = JobTable(job for job in jobs.values() if job.id not in self._purged)
        if self._set_back_s:
            jobs = JobTable(_set_back(job, self.now_s, self._set_back_s) for job in jobs.values())
        return State(self.cluster, jobs, self.now_s, before.num_events + 1)

    def knows(self, job_id: str) -> bool:
        """Whether a job with this id was ever submitted."""
        return job_id in self._before.jobs

    @property
    def next_number(self) -> int:
        return self._before.jobs.next_number

    def purge(self, job_ids: Iterable[str]) -> None:
        """Forget finished jobs; others stay."""
        jobs = self._before.jobs
        self._purged = frozenset(job_id for job_id in job_ids if job_id in jobs and job_id not in jobs.active)

    def set_clock_back(self, to_s: float) -> None:
        """Move times in the future back with the clock, so that the durations between them stay the same."""
        if to_s < self._before.now_s:
            self._set_back_s = self._before.now_s - to_s
            self.now_s = to_s

    def add(self, job: Job) -> None:
        """A job enters the queue."""
        self._writable()[job.spec.id] = job

    def change(self, job: Job, changes: dict[str, Any]) -> Job:
        """Change fields other than ``state``, which only :meth:`move` may change."""
        new = self._writable()[job.spec.id] = altered(job, changes)
        return new

    def move(self, job: Job, state: JobState, changes: dict[str, Any]) -> Job:
        """Change the job's state, if the table allows it."""
        if state not in LEGAL[job.state]:
            check_transition(job.id, job.state, state)
        changes["state"] = state
        return self.change(job, changes)

    def decide(self) -> None:
        """Request a decision."""
        self.actions.append(Decide())

    def unwant(self, job: Job) -> Job:
        """Cancel what the last decision gave the job; its future partner keeps the devices alone."""
        if not job.wanted:
            return job
        if job.wanted_partner is not None:
            self.change(self.active[job.wanted_partner], {"wanted_partner": None, "wanted_fills": False})
        return self.change(job, {"wanted": (), "wanted_partner": None, "wanted_fills": False})

    def release(self, job: Job, state: JobState, changes: dict[str, Any]) -> Job:
        """The current attempt's last worker has exited: its devices are free."""
        if job.partner is not None:
            self.change(self.active[job.partner], {"partner": None, "fills": False})
        held_s = self.now_s - job.changed_s
        changes |= {
            "devices": (),
            "partner": None,
            "fills": False,
            "is_killed": False,
            "workers_since_s": None,
            "changed_s": self.now_s,
            "attained_device_s": job.attained_device_s + len(job.devices) * held_s,
            "ran_s": job.ran_s + held_s,
        }
        return self.move(job, state, changes)

    def finish(self, job: Job, state: JobState, reason: dict[str, Any], exit_code: int | None = None) -> None:
        """The job has ended; it no longer holds or wants anything.  ``reason`` as from :func:`because`."""
        job = self.unwant(job)
        over = {"finished_s": self.now_s, "exit_code": exit_code, **reason}
        job = self.release(job, state, over) if job.devices else self.move(job, state, over)
        del self._writable()[job.id]
        self._finished.append(job)
        self.decide()

    def start_ready(self) -> None:
        """Start jobs whose devices are free now, in order of submission."""
        waiting = [job for job in self.active.values() if job.wanted and not job.devices]
        if not waiting:
            return
        held = set(chain.from_iterable([job.devices for job in self.active.values()]))
        for job in waiting:
            if held.isdisjoint(job.wanted):
                self._start(job, partner=None)
                held.update(job.wanted)
            elif job.wanted_partner is not None:
                partner = self.active[job.wanted_partner]
                if partner.devices == job.wanted and partner.partner is None:
                    self._start(job, partner=partner)

    def _start(self, job: Job, *, partner: Job | None) -> None:
        attempt = job.attempt + 1
        changes = {
            "attempt": attempt,
            "devices": job.wanted,
            "partner": partner.id if partner else None,
            "fills": partner is not None and job.wanted_fills,
            "num_restarts": attempt - 1,
            "started_s": self.now_s if job.started_s is None else job.started_s,
            "changed_s": self.now_s,
        }
        self.move(job, JobState.RUNNING, changes)
        if partner:
            self.change(partner, {"partner": job.id, "fills": partner.wanted_fills})
        self.actions.append(StartWorkers(job.id, attempt, job.wanted))

    def _writable(self) -> dict[str, Job]:
        if self._own is None:
            self.active = self._own = dict(self._before.jobs.active)
        return self._own
