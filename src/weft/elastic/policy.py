"""What all policies have in common: rules, menus, and the way they put a decision into words."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace

from weft.core.snapshot import Allocation, JobView, Snapshot
from weft.elastic.menu import Menu, MenuBook
from weft.elastic.rules import Rules


class BasePolicy(ABC):
    """A policy by name; subclasses say how sizes are chosen and why."""

    name: str
    because: str
    """What the policy strives for, to complete "it has n workers, because ..."."""
    default_rules = Rules()
    aligned = True
    """Whether only sizes that fill nodes evenly are offered."""
    keeps_order = True
    """Whether a job that cannot squeeze in gets its first start by order of submission, whatever the policy prefers."""

    def __init__(self, rules: Rules | None = None) -> None:
        self.rules = replace(rules or self.default_rules, keeps_order=self.keeps_order)
        self._book = MenuBook(aligned=self.aligned)

    def decide(self, snapshot: Snapshot) -> Allocation:
        """The workers each job should have from now on."""
        if not snapshot.jobs or not snapshot.num_devices:
            return Allocation({})
        return self._decide(snapshot)

    @abstractmethod
    def _decide(self, snapshot: Snapshot) -> Allocation: ...

    def explain(self, snapshot: Snapshot, allocation: Allocation, job: str) -> str:
        """One sentence: why ``job`` has the workers it has in ``allocation``."""
        view = next(view for view in snapshot.jobs if view.id == job)
        menu = self._book.menus(snapshot.cluster, (view,))[0]
        workers = allocation.workers.get(job, 0)
        num_devices = snapshot.cluster.num_devices
        if not menu.sizes:
            return f"{job} waits: it needs {view.spec.min_workers} or more of {num_devices} devices"
        if not workers:
            return (
                f"{job} waits with {view.remaining_steps:.0f} steps to go, the devices went to others: {self.because}"
            )
        sentence = f"{job} has {workers} of {num_devices} devices"
        if partner := allocation.partners().get(job):
            if job in allocation.fillers:
                sentence += f", running in the gaps of {partner}"
            elif partner in allocation.fillers:
                sentence += f", {partner} running in its gaps"
            else:
                sentence += f", taking turns with {partner}"
        if workers != view.workers and view.workers:
            sentence += f" (before: {view.workers}, a restart costs {view.restart_s:.0f} s)"
        return f"{sentence}: {self._prospect(view, menu, workers)}; {self._standing(view)}{self.because}"

    def _standing(self, view: JobView) -> str:
        if self.rules.pinned(view):
            return "it changed a moment ago and is left alone; "
        if self.rules.overdue(view):
            if view.waited_s < self.rules.ageing_s:
                return "it is next by order of submission; "
            return f"it has waited {view.waited_s:.0f} s and comes first; "
        return ""

    @staticmethod
    def _prospect(view: JobView, menu: Menu, workers: int) -> str:
        index = menu.sizes.index(workers)
        now_s = view.remaining_steps * menu.step_s[index]
        if index + 1 == len(menu.sizes):
            return f"{now_s:.0f} s to go, no larger size is allowed"
        more, more_s = menu.sizes[index + 1], view.remaining_steps * menu.step_s[index + 1]
        if more_s >= now_s:
            return f"{now_s:.0f} s to go, {more} would be no faster"
        return f"{now_s:.0f} s to go, {more} would save {now_s - more_s:.0f} s"


def ordered(snapshot: Snapshot, rules: Rules, keys: Sequence[float] | None = None) -> list[int]:
    """Rows of the snapshot in the order in which they are served; ties (all, without ``keys``) by submission."""
    jobs = snapshot.jobs
    rows = list(range(len(jobs)))
    if keys is not None:
        rows.sort(key=keys.__getitem__)
    if rules.urgent(jobs) or any(job.spec.priority for job in jobs):
        rows.sort(key=lambda row: rules.rank(jobs[row]))  # equal ranks stay in their order
    return rows
