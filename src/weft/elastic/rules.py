"""What holds under every policy: pins, aging, priorities, quotas.

- A job that changed less than ``hold_s`` ago keeps what it has (the rate limit on restarts).
- A job that has waited ``aging_s`` is overdue: it comes before all that are not, whatever the policy
  prefers.
- So is a short job that has waited ten times its length, before all other overdue ones.
- So is a job that is due for its first start by order of submission (``JobView.is_next``), under policies that keep it.
- Then higher ``priority`` first; then the policy's own order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from weft.core.snapshot import JobView, Snapshot
from weft.elastic.menu import Menu
from weft.errors import UsageError

SHORT_S = 60.0
SHORT_GRACE_S = 240.0
SHORT_PATIENCE = 10.0
"""A job known to be shorter than ``SHORT_S`` comes first after the grace and this many times its own length."""
_LATEST_SHORT_S = SHORT_GRACE_S + SHORT_PATIENCE * SHORT_S


@dataclass(frozen=True, slots=True)
class Rules:
    """Limits that every policy keeps."""

    aging_s: float = 12 * 3600.0
    hold_s: float = 0.0
    review_s: float = 600.0
    """Policies that depend on remaining work decide again after this time even if nothing has happened."""
    keeps_order: bool = True
    """False if the policy has an order of its own, which first starts must not change."""

    def __post_init__(self) -> None:
        for name in ("aging_s", "hold_s", "review_s"):
            if not getattr(self, name) >= 0:
                raise UsageError(f"{name} is {getattr(self, name)}: expected seconds >= 0")

    def pinned(self, job: JobView) -> bool:
        """Whether ``job`` was changed so recently that it must be left alone."""
        # Of two that share devices one may have to go when the other grows: they are never pinned.
        return job.workers > 0 and job.partner is None and job.settled_s < self.hold_s

    def overdue(self, job: JobView) -> bool:
        """Whether ``job`` has waited so long, or is due for its first start, that it comes first."""
        if job.workers:
            return False
        return job.waited_s >= self.aging_s or (job.is_next and self.keeps_order) or _is_short_and_late(job)

    def rank(self, job: JobView) -> tuple[int, float, int]:
        """Sort key: pinned, then overdue (longest wait first), then by priority."""
        if self.pinned(job):
            return (0, 0.0, 0)
        if self.overdue(job):
            return (1, float("-inf") if _is_short_and_late(job) else -job.waited_s, 0)
        return (2, 0.0, -job.spec.priority)

    def urgent(self, jobs: Sequence[JobView]) -> list[int]:
        """Rows of the jobs that come before all others: those that are pinned, and those that are overdue."""
        aging_s, may_pin, ordered = self.aging_s, self.hold_s > 0, self.keeps_order
        return [
            row
            for row, job in enumerate(jobs)
            if (
                may_pin and self.pinned(job)
                if job.workers
                else job.waited_s >= aging_s or (ordered and job.is_next) or _is_short_and_late(job)
            )
        ]

    def next_due_s(self, snapshot: Snapshot) -> float:
        """When a pin ends or a waiting job becomes overdue: the answer may change then by itself."""
        aging_s, may_pin = self.aging_s, self.hold_s > 0
        soonest = float("inf")
        for job in snapshot.jobs:
            if job.workers == 0:
                waited_s = job.waited_s
                left_s = aging_s - waited_s
                if 0 < left_s < soonest:
                    soonest = left_s
                if waited_s < _LATEST_SHORT_S and waited_s < (due_s := _short_due_s(job)):
                    soonest = min(soonest, due_s - waited_s)
            elif may_pin and self.pinned(job):
                soonest = min(soonest, self.hold_s - job.settled_s)
        return snapshot.now_s + soonest


def _is_short_and_late(job: JobView) -> bool:
    """Whether a job shorter than a minute at its requested size has waited ten times its length plus 4 minutes."""
    return job.waited_s >= SHORT_GRACE_S and job.waited_s >= _short_due_s(job)


def _short_due_s(job: JobView) -> float:
    """How long a short job waits until it comes first; infinite for all others."""
    if not job.is_length_known:
        return float("inf")
    times = job.curve.times
    requested = times.get(job.spec.requested_workers) or times[job.curve.sizes[-1]]
    length_s = job.remaining_steps * requested.step_s
    return SHORT_GRACE_S + SHORT_PATIENCE * length_s if length_s < SHORT_S else float("inf")


class Room:
    """Devices and quotas that are left while an allocation is being made."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.devices = snapshot.num_devices
        self.quotas = dict(snapshot.quotas)

    def fits(self, job: JobView, num: int) -> bool:
        """Whether ``job`` may have ``num`` more devices."""
        return num <= self.devices and (not self.quotas or num <= self.quotas.get(job.spec.user, num))

    def take(self, job: JobView, num: int) -> None:
        self.devices -= num
        if self.quotas and job.spec.user in self.quotas:
            self.quotas[job.spec.user] -= num


def by_priority(jobs: Sequence[JobView], rows: Sequence[int]) -> list[list[int]]:
    """``rows`` of ``jobs`` in classes of one priority each, the highest first; within a class in the order given.

    A priority is an order, not a quantity: how far apart two of them are does not matter.
    """
    classes: dict[int, list[int]] = {}
    for row in rows:
        classes.setdefault(jobs[row].spec.priority, []).append(row)
    return [classes[priority] for priority in sorted(classes, reverse=True)]


def admitted(
    snapshot: Snapshot, menus: Sequence[Menu], order: Sequence[int], rules: Rules
) -> tuple[dict[int, int], Room]:
    """The jobs that can run at all, by row, at their smallest size (a pinned one at the size it has)."""
    room = Room(snapshot)
    sizes: dict[int, int] = {}
    jobs = snapshot.jobs
    wishes = [(row, menus[row].sizes[0]) for row in order if menus[row].sizes]
    if rules.hold_s > 0:
        # A pinned one whose size is no longer on its menu, or beyond its quota, must change: not at the expense of
        # those that can stay as they are.
        pinned = [row for row in order if rules.pinned(jobs[row]) and jobs[row].workers in menus[row].sizes]
        wishes = [*((row, jobs[row].workers) for row in pinned), *wishes]
    for row, size in wishes:
        if row not in sizes and room.fits(jobs[row], size):
            room.take(jobs[row], size)
            sizes[row] = size
    return sizes, room
