"""Why each job has its workers after a decision: the facts of the snapshot and the allocation as a :class:`Reason`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Protocol

from weft.core.plural import plural
from weft.core.reason import (
    AsRequested,
    AtMaximum,
    ClusterTooSmall,
    Exploring,
    Hold,
    NoFaster,
    NoRoom,
    PolicyChoice,
    Preempted,
    Priority,
    Quota,
    Reason,
    Resources,
    SharedWith,
)
from weft.core.snapshot import Allocation, JobView, Snapshot
from weft.elastic.menu import Menu, next_larger, offered_sizes
from weft.elastic.rules import Rules


class DecisionExplainer(Protocol):
    """The reasons behind one decision of one policy."""

    snapshot: Snapshot
    allocation: Allocation
    num_free: int
    """Devices that the allocation leaves free."""

    def reason(self, job_id: str) -> Reason:
        """Why the job has the workers it has in the allocation; it must be in the snapshot."""

    def time_left(self, job_id: str, remaining_steps: int) -> str:
        """How much longer the job will take at its size and at the next one, if its speed was measured."""

    def why_this_kind(self, job_id: str) -> str:
        """The device kind it has and how fast the others are; empty in a cluster of one kind."""


class Explainer:
    """The reasons behind one decision in a cluster of one device kind."""

    def __init__(
        self,
        policy_name: str,
        rules: Rules,
        menu_of: Callable[[JobView], Menu],
        snapshot: Snapshot,
        allocation: Allocation,
        *,
        aligned: bool,
        keeps_sizes: bool,
        larger: Callable[[Sequence[int], int], int | None] = next_larger,
    ) -> None:
        """``aligned``: whether the policy offers only sizes that fill nodes evenly.

        ``keeps_sizes``: whether it runs every job at the size it asked for; ``larger``: which size follows one.
        """
        self._policy_name, self._rules, self._menu_of = policy_name, rules, menu_of
        self.snapshot, self.allocation = snapshot, allocation
        self._aligned, self._keeps_sizes, self._larger_of = aligned, keeps_sizes, larger
        self._views = {view.id: view for view in snapshot.jobs}
        self._partners = allocation.partners()
        self._above: dict[int, int] = {}
        self.num_free = max(snapshot.num_devices - allocation.num_devices(), 0)

    def reason(self, job_id: str) -> Reason:
        view = self._views[job_id]
        workers = self.allocation.workers.get(job_id, 0)
        return self._running(view, workers) if workers else self._waiting(view)

    def why_this_kind(self, job_id: str) -> str:
        return ""

    def time_left(self, job_id: str, remaining_steps: int) -> str:
        view, workers = self._views[job_id], self.allocation.workers.get(job_id, 0)
        times = view.curve.times
        if workers not in times or workers in view.curve.untried:
            return ""
        words = f"{plural(remaining_steps, 'step')} to go, about {remaining_steps * times[workers].step_s:.0f} s"
        larger = self._larger(view, workers)
        if larger is None or larger not in times:
            return words
        how = "expected with" if larger in view.curve.untried else "with"
        return f"{words} ({remaining_steps * times[larger].step_s:.0f} s {how} {larger} workers)"

    def _waiting(self, view: JobView) -> Reason:
        menu = self._menu_of(view)
        in_service = self.snapshot.cluster.num_devices
        if not menu.sizes:
            return ClusterTooSmall(view.spec.min_workers, in_service)
        needs = menu.nearest(view.spec.requested_workers) if self._keeps_sizes else menu.sizes[0]
        if view.workers and self._gainers:
            return Preempted(self._gainers, view.workers, 0)
        if self._is_over_quota(view, needs):
            return Quota(view.spec.user, 0)
        above = self._num_above(view.spec.priority)
        if above and needs <= self.snapshot.num_devices < above + needs:
            return Priority(needs)
        return Resources(needs) if needs > self.num_free else PolicyChoice(self._policy_name, 0)

    def _running(self, view: JobView, workers: int) -> Reason:
        fillers = self.allocation.fillers
        if partner := self._partners.get(view.id):
            return SharedWith(partner, workers, fills=view.id in fillers, is_filled=partner in fillers)
        if workers < view.workers and self._gainers:
            return Preempted(self._gainers, view.workers - workers, workers)
        spec = view.spec
        if spec.min_workers == spec.max_workers or (self._keeps_sizes and workers == spec.requested_workers):
            return AsRequested(workers)
        larger = self._larger(view, workers)
        if larger is None:
            return AtMaximum(workers, spec.max_workers, self.snapshot.cluster.num_devices)
        return self._why_no_more(view, workers, larger)

    def _why_no_more(self, view: JobView, workers: int, larger: int) -> Reason:
        curve, hold_s = view.curve, self._rules.hold_s
        if workers in curve.untried:
            return Exploring(workers, larger, hold_s)
        if larger in curve.times and larger not in curve.untried and workers in curve.times:
            step_s, larger_step_s = curve.times[workers].step_s, curve.times[larger].step_s
            if larger_step_s >= step_s:
                return NoFaster(workers, larger, step_s, larger_step_s)
        if self._is_over_quota(view, larger - workers):
            return Quota(view.spec.user, workers)
        if larger - workers > self.num_free:
            return NoRoom(workers, larger)
        if self._rules.pinned(view):
            return Hold(workers, hold_s) if view.num_restarts else Exploring(workers, larger, hold_s)
        return PolicyChoice(self._policy_name, workers)

    def _larger(self, view: JobView, workers: int) -> int | None:
        """The next larger size it may get, now or (while it is being explored) later."""
        cluster = self.snapshot.cluster
        sizes = offered_sizes(view.spec.allowed_sizes(cluster.num_devices), cluster, aligned=self._aligned)
        return self._larger_of(sizes, workers)

    @cached_property
    def _gainers(self) -> tuple[str, ...]:
        """Jobs that get more workers than they had."""
        workers = self.allocation.workers
        return tuple(view.id for view in self.snapshot.jobs if workers.get(view.id, 0) > view.workers)

    @cached_property
    def _by_priority(self) -> list[tuple[int, int]]:
        """Priority and devices of each job that has some; of a pair, only of the job with the higher priority."""
        found = []
        for name, size in self.allocation.workers.items():
            mine, partner = self._views[name].spec.priority, self._partners.get(name)
            others = mine if partner is None else self._views[partner].spec.priority
            if partner is None or (mine, name) > (others, partner):
                found.append((mine, size))
        return found

    def _num_above(self, priority: int) -> int:
        """Devices of jobs with a higher priority."""
        found = self._above.get(priority)
        if found is None:
            found = self._above[priority] = sum(size for other, size in self._by_priority if other > priority)
        return found

    @cached_property
    def _held_by_user(self) -> Mapping[str, int]:
        held: Counter[str] = Counter()
        for name, size in self.allocation.workers.items():
            held[self._views[name].spec.user] += size
        return held

    def _is_over_quota(self, view: JobView, num: int) -> bool:
        quota = self.snapshot.quotas.get(view.spec.user)
        return quota is not None and self._held_by_user.get(view.spec.user, 0) + num > quota
