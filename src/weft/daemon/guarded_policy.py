"""A policy that cannot stop the queue: whatever it does, there is a decision.

- If it raises or returns an impossible allocation, the jobs it fails on are found by bisection and set aside.  Those
  that wait keep waiting and say why; those that run keep their devices.  The others are decided without them.
- If it fails on every job, or does not answer in time, this decision is made without it.

A job that was set aside is tried again when it has changed, after a while, and after a restart of the controller.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace

from weft.core.snapshot import Allocation, JobView, Snapshot
from weft.daemon.fallback import culprits, problem, simplest, standing, without
from weft.daemon.policy_thread import MAX_DECISION_S, PolicyThread, PolicyTimeoutError
from weft.elastic.policy import BasePolicy

_log = logging.getLogger(__name__)

LOOK_AGAIN_S = 600.0


class ImpossibleAnswerError(ValueError):
    """A policy's answer that cannot be carried out."""


@dataclass(frozen=True, slots=True)
class _Aside:
    kind: Hashable
    """What the job was like when the policy failed on it."""
    until_s: float
    reason: str


class GuardedPolicy:
    """Asked by one thread at a time."""

    def __init__(
        self, policy: BasePolicy, on_error: Callable[[], None] = lambda: None, limit_s: float = MAX_DECISION_S
    ) -> None:
        self.policy = policy
        self._on_error = on_error
        self._thread = PolicyThread(limit_s)
        self._aside: dict[str, _Aside] = {}
        self._logged = ""
        self.trouble = ""
        """Why the last decision was made without the policy, if it was."""

    @property
    def aside(self) -> dict[str, str]:
        """The jobs the policy fails on, and how."""
        return {name: one.reason for name, one in self._aside.items()}

    def decide(self, snapshot: Snapshot) -> Allocation:
        """The policy's allocation; jobs that are set aside keep what they have."""
        still = {
            job.id: one
            for job in snapshot.jobs
            if (one := self._aside.get(job.id)) and one.kind == _kind(job) and snapshot.now_s < one.until_s
        }
        apart = {job.id for job in snapshot.jobs if job.partner and job.partner not in still}
        self._aside = {name: one for name, one in still.items() if name not in apart}
        try:
            allocation = self._asked(without(snapshot, self._aside.keys()))
        except Exception as error:
            return self._fallen_back(snapshot, error)
        self.trouble = self._logged = ""
        return self._complete(snapshot, allocation)

    def explain(self, snapshot: Snapshot, allocation: Allocation, job: str) -> str:
        """Why ``job`` has what it has: the policy's sentence, or why there is none."""
        if job in self._aside:
            return f"{job} {self._aside[job].reason}"
        try:
            # Thousands of sentences may follow one decision: too many to hand each from thread to thread.
            if not self.trouble and not self._thread.is_overdue:
                return self.policy.explain(snapshot, allocation, job)
        except Exception as error:
            _log.warning("the policy %s cannot explain job %s: %r", self.policy.name, job, error)
        workers = allocation.workers.get(job, 0)
        has = f"has {workers} of {snapshot.cluster.num_devices} devices" if workers else "waits"
        return f"{job} {has}; {self.trouble or f'the policy {self.policy.name} gives no reason'}"

    def _asked(self, snapshot: Snapshot) -> Allocation:
        allocation = self._thread.ask(lambda: self.policy.decide(snapshot))
        if wrong := problem(snapshot, allocation):
            raise ImpossibleAnswerError(wrong)
        return allocation

    def _fallen_back(self, snapshot: Snapshot, error: Exception) -> Allocation:
        self._on_error()

        def works(some: Sequence[JobView]) -> bool:
            try:
                self._asked(replace(smaller, jobs=tuple(some)))
            except PolicyTimeoutError:
                raise
            except Exception:
                return False
            return True

        smaller = without(snapshot, self._aside.keys())
        how = f"{type(error).__name__}: {error}"
        try:
            found = None if isinstance(error, PolicyTimeoutError) else culprits(smaller.jobs, works)
            if found is not None:
                self._set_aside(snapshot, found, how)
                return self._complete(snapshot, self._asked(without(snapshot, self._aside.keys())))
        except Exception as later:
            how = f"{type(later).__name__}: {later}"
        self.trouble = (
            f"the policy {self.policy.name} failed ({how}): running jobs keep their devices, others start small"
        )
        self._note(f"the policy {self.policy.name} failed and was done without", how, error)
        return replace(simplest(snapshot, self.policy.rules), valid_until_s=snapshot.now_s + self.policy.rules.review_s)

    def _set_aside(self, snapshot: Snapshot, names: Sequence[str], how: str) -> None:
        partners = {job.partner for job in snapshot.jobs if job.id in names and job.partner}
        for job in snapshot.jobs:
            if job.id in partners or job.id in names:
                stays = "keeps the devices it has" if job.workers else "waits"
                reason = (
                    f"{stays}: the policy {self.policy.name} fails on this job ({how}); other jobs are decided without "
                    "it. Cancel it and submit it with other options, or start the controller with another --policy"
                )
                self._aside[job.id] = _Aside(_kind(job), snapshot.now_s + LOOK_AGAIN_S, reason)
        self._note(f"the policy {self.policy.name} fails on {', '.join(sorted(names))}, decided without", how, None)

    def _complete(self, snapshot: Snapshot, allocation: Allocation) -> Allocation:
        """With the jobs that are set aside, as they are."""
        if not self._aside:
            return allocation
        have = standing(job for job in snapshot.jobs if job.id in self._aside)
        due_s = min(one.until_s for one in self._aside.values())
        return replace(
            allocation,
            workers={**allocation.workers, **have.workers},
            pairs=allocation.pairs + have.pairs,
            valid_until_s=min(allocation.valid_until_s, due_s),
            kept=have.kept,
        )

    def _note(self, what: str, how: str, error: Exception | None) -> None:
        """Once for each kind of trouble: the same decision may fail every second."""
        if (key := f"{what} {how}") != self._logged:
            self._logged = key
            _log.error("%s: %s", what, how, exc_info=error)


def _kind(job: JobView) -> Hashable:
    return (job.spec, id(job.curve), job.workers, job.partner)
