"""Keeps the queue running even if the policy fails.

- If the policy raises or returns an impossible allocation, the jobs it fails on are found by bisection and set aside:
  waiting ones keep waiting and say why, and running ones keep their devices.  The policy decides on the others.
- If it fails on every job, or does not return in time, this decision is made without the policy.

A job that was set aside is tried again when it changes, after :data:`RETRY_S`, and when the controller restarts.
"""

from __future__ import annotations

import logging
import math
import queue
import threading
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence, Set
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from weft.core.reason import PolicyChoice, PolicyFailed, Reason
from weft.core.snapshot import Allocation, JobView, Snapshot
from weft.elastic.explainer import DecisionExplainer
from weft.elastic.kind_turns import decide_in_turn
from weft.elastic.policy import BasePolicy
from weft.elastic.rules import Room, Rules
from weft.errors import WeftError

_log = logging.getLogger(__name__)

MAX_DECISION_S = 10.0
RETRY_S = 600.0
MAX_TRIALS = 100
"""How many times the policy may be called to find the jobs it fails on."""


Result = TypeVar("Result")


class ImpossibleAnswerError(ValueError):
    """A policy returned an allocation that cannot be carried out."""


@dataclass(frozen=True, slots=True)
class _Aside:
    kind: Hashable
    """The job as it was when the policy failed on it."""
    until_s: float
    error: str


class GuardedPolicy:
    """Used by one thread at a time."""

    def __init__(
        self, policy: BasePolicy, on_error: Callable[[], None] = lambda: None, limit_s: float = MAX_DECISION_S
    ) -> None:
        self.policy = policy
        self._on_error = on_error
        self._thread = PolicyThread(limit_s)
        self._aside: dict[str, _Aside] = {}
        self._logged = ""
        self._explainer: DecisionExplainer | None = None
        self.trouble = ""
        """Why the last decision was made without the policy; empty if it was not."""

    @property
    def aside(self) -> dict[str, str]:
        """The jobs the policy fails on, and the error."""
        return {name: one.error for name, one in self._aside.items()}

    def decide(self, snapshot: Snapshot) -> Allocation:
        """The policy's allocation; jobs that were set aside keep their devices."""
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

    def explain(self, snapshot: Snapshot, allocation: Allocation, job: str) -> Reason:
        """Why ``job`` has its workers: the policy's reason, or why there is none."""
        workers = allocation.workers.get(job, 0)
        if job in self._aside:
            return PolicyFailed(self.policy.name, self._aside[job].error, workers > 0, on_this_job=True)
        if self.trouble:
            return PolicyFailed(self.policy.name, self.trouble, workers > 0, on_this_job=False)
        if not self._thread.is_overdue:
            # One decision may need thousands of reasons: too many to pass each between threads.
            try:
                return self.explainer(snapshot, allocation).reason(job)
            except Exception as error:
                _log.warning("the policy %s cannot explain job %s: %r", self.policy.name, job, error)
        return PolicyChoice(self.policy.name, workers)

    def explainer(self, snapshot: Snapshot, allocation: Allocation) -> DecisionExplainer:
        """The reasons behind a decision; cached for the last decision asked about."""
        kept = self._explainer
        if kept is None or kept.snapshot is not snapshot or kept.allocation is not allocation:
            kept = self._explainer = self.policy.explainer(snapshot, allocation)
        return kept

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
        self.trouble = how
        self._note(f"the policy {self.policy.name} failed; decided without it", how, error)
        return replace(simplest(snapshot, self.policy.rules), valid_until_s=snapshot.now_s + self.policy.rules.review_s)

    def _set_aside(self, snapshot: Snapshot, names: Sequence[str], how: str) -> None:
        partners = {job.partner for job in snapshot.jobs if job.id in names and job.partner}
        for job in snapshot.jobs:
            if job.id in partners or job.id in names:
                self._aside[job.id] = _Aside(_kind(job), snapshot.now_s + RETRY_S, how)
        self._note(f"the policy {self.policy.name} fails on {', '.join(sorted(names))}; set aside", how, None)

    def _complete(self, snapshot: Snapshot, allocation: Allocation) -> Allocation:
        """Add the jobs that were set aside, with what they have."""
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
            kinds={**allocation.kinds, **have.kinds},
        )

    def _note(self, what: str, how: str, error: Exception | None) -> None:
        """Log each kind of trouble once: the same decision may fail every second."""
        if (key := f"{what} {how}") != self._logged:
            self._logged = key
            _log.error("%s: %s", what, how, exc_info=error)


def _kind(job: JobView) -> Hashable:
    return (job.spec, id(job.curve), job.workers, job.partner)


def problem(snapshot: Snapshot, allocation: Allocation) -> str:
    """Why an allocation cannot be carried out; empty if it can."""
    jobs = {job.id: job for job in snapshot.jobs}
    num_devices = snapshot.num_devices
    for name, size in allocation.workers.items():
        if name not in jobs:
            return f"it includes the job {name!r}, which does not exist"
        if not isinstance(size, int) or isinstance(size, bool):
            return f"it gives {name} {size!r} workers, which is not a whole number"
        spec = jobs[name].spec
        allowed = spec.min_workers <= size <= spec.max_workers and (not spec.sizes or size in spec.sizes)
        if size and size != jobs[name].workers and not allowed:
            return f"it gives {name} {size} workers, which the job does not allow on {num_devices} devices"
    in_pairs = Counter(name for pair in allocation.pairs for name in pair)
    for pair in allocation.pairs:
        sizes = {allocation.workers.get(name, 0) for name in pair}
        if len(sizes) != 1 or 0 in sizes or any(in_pairs[name] > 1 for name in pair):
            return f"it pairs {' and '.join(map(str, pair))}, which do not share the same devices with each other alone"
    if allocation.num_devices() > num_devices:
        return f"it assigns {allocation.num_devices()} devices, but there are {num_devices}"
    if snapshot.cluster.is_mixed and (wrong := _problem_with_kinds(snapshot, allocation)):
        return wrong
    if math.isnan(allocation.valid_until_s):
        return "it does not say how long it is valid"
    return ""


def _problem_with_kinds(snapshot: Snapshot, allocation: Allocation) -> str:
    seconds = {second for _, second in allocation.pairs}
    held: Counter[str] = Counter()
    for name, size in allocation.workers.items():
        kind = allocation.kinds.get(name)
        if size and kind not in snapshot.cluster.by_kind:
            return f"it gives {name} devices of the kind {kind!r}, which does not exist"
        held[kind or ""] += 0 if name in seconds else size
    for kind, num in held.items():
        if num > max(snapshot.num_of_kind(kind), 0):
            return f"it assigns {num} devices of the kind {kind!r}, but there are {snapshot.num_of_kind(kind)}"
    return ""


def without(snapshot: Snapshot, names: Set[str]) -> Snapshot:
    """The snapshot without these jobs, their devices, and their share of quotas.  ``names`` has both jobs of a pair."""
    if not names:
        return snapshot
    removed = [job for job in snapshot.jobs if job.id in names]
    holders = [job for job in removed if not (job.partner and job.partner < job.id)]
    num_held = sum(job.workers for job in holders)
    held_by_kind = {
        kind: num + sum(job.workers for job in holders if job.kind == kind)
        for kind, num in snapshot.held_by_kind.items()
    }
    quotas = {
        user: max(quota - sum(job.workers for job in removed if job.spec.user == user), 0)
        for user, quota in snapshot.quotas.items()
    }
    rest = tuple(job for job in snapshot.jobs if job.id not in names)
    return replace(snapshot, jobs=rest, quotas=quotas, num_held=snapshot.num_held + num_held, held_by_kind=held_by_kind)


def culprits(jobs: Sequence[JobView], works: Callable[[Sequence[JobView]], bool]) -> list[str] | None:
    """The jobs without which the policy ``works``, found by bisection; ``None`` if no subset of jobs is at fault.

    >>> from weft.core.job import JobSpec
    >>> from weft.core.speed import SpeedCurve, StepTime
    >>> views = [JobView(JobSpec(name, 0.0), SpeedCurve({1: StepTime(1.0)}), 1.0) for name in "abcdefgh"]
    >>> culprits(views, lambda some: all(view.id != "e" for view in some))
    ['e']
    """
    found: list[str] = []
    suspects = [list(jobs)]
    num_trials = 0
    while suspects:
        group = suspects.pop()
        if num_trials >= MAX_TRIALS:
            return None
        num_trials += 1
        if works(group):
            continue
        if len(group) == 1:
            found.append(group[0].id)
        else:
            suspects += [group[len(group) // 2 :], group[: len(group) // 2]]
    innocent = [job for job in jobs if job.id not in found]
    return found if found and innocent and works(innocent) else None


def standing(jobs: Iterable[JobView]) -> Allocation:
    """An allocation in which these jobs keep what they have."""
    having = [job for job in jobs if job.workers]
    pairs = tuple((job.id, job.partner) for job in having if job.partner and job.id < job.partner)
    kinds = {job.id: job.kind for job in having if job.curves}
    return Allocation(
        {job.id: job.workers for job in having}, pairs, kept=frozenset(job.id for job in having), kinds=kinds
    )


def simplest(snapshot: Snapshot, rules: Rules) -> Allocation:
    """Jobs with devices keep them; the others start at their smallest size, in order, while devices last."""
    have = standing(snapshot.jobs)
    others = without(snapshot, have.kept)
    if snapshot.cluster.is_mixed:
        more = decide_in_turn(dict.fromkeys(snapshot.cluster.kind_names, _SmallestFirst(rules)), others)
        return replace(have, workers={**have.workers, **more.workers}, kinds={**have.kinds, **more.kinds})
    room = Room(others)
    started: dict[str, int] = {}
    for job in sorted(others.jobs, key=rules.rank):
        size = next((size for size in job.spec.allowed_sizes(max(room.devices, 0)) if size in job.curve.times), 0)
        if size and room.fits(job, size):
            room.take(job, size)
            started[job.id] = size
    return replace(have, workers={**have.workers, **started})


@dataclass(frozen=True, slots=True)
class _SmallestFirst:
    """:func:`simplest` on the devices of one kind."""

    rules: Rules

    def decide(self, snapshot: Snapshot) -> Allocation:
        return simplest(snapshot, self.rules)


class PolicyTimeoutError(WeftError):
    """The policy did not return in time."""


class PolicyThread:
    """Runs one call of the policy at a time, so that one that never returns cannot block the controller.

    Python cannot kill a thread.  While a call is overdue, further calls fail immediately, and the caller must decide
    without the policy.  When the overdue call returns, the policy can be used again.
    """

    def __init__(self, limit_s: float = MAX_DECISION_S) -> None:
        self._limit_s = limit_s
        self._calls: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]]] = queue.SimpleQueue()
        self._overdue: Future[Any] | None = None
        self._thread: threading.Thread | None = None

    @property
    def is_overdue(self) -> bool:
        """Whether a call that took too long is still running."""
        return self._overdue is not None and not self._overdue.done()

    def ask(self, call: Callable[[], Result]) -> Result:
        """The result of ``call``; raises what it raises, or :class:`PolicyTimeoutError`."""
        if self.is_overdue:
            raise PolicyTimeoutError(f"an earlier decision is still running after {self._limit_s:g} s")
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="weft-policy", daemon=True)
            self._thread.start()
        answer: Future[Result] = Future()
        self._calls.put((call, answer))
        try:
            return answer.result(self._limit_s)
        except FutureTimeoutError:
            if answer.done():  # the call itself raised a TimeoutError
                raise
            self._overdue = answer
            raise PolicyTimeoutError(f"the decision took longer than the {self._limit_s:g} s it is allowed") from None

    def _run(self) -> None:
        while True:
            call, answer = self._calls.get()
            try:
                answer.set_result(call())
            except BaseException as error:
                answer.set_exception(error)
