"""What all policies have in common: rules, menus, and reasons."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace

from weft.core.reason import Reason
from weft.core.snapshot import Allocation, Snapshot
from weft.elastic.explainer import Explainer
from weft.elastic.menu import MenuBook
from weft.elastic.rules import Rules


class BasePolicy(ABC):
    """A policy by name; subclasses say how sizes are chosen and why."""

    name: str
    because: str
    """What the policy strives for, in words, for ``weft explain``."""
    default_rules = Rules()
    aligned = True
    """Whether only sizes that fill nodes evenly are offered."""
    keeps_sizes = False
    """Whether every job runs at the size it asked for."""
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

    def explainer(self, snapshot: Snapshot, allocation: Allocation) -> Explainer:
        """The reasons behind a decision of this policy."""
        return Explainer(
            self.name,
            self.rules,
            lambda view: self._book.menus(snapshot.cluster, (view,))[0],
            snapshot,
            allocation,
            aligned=self.aligned,
            keeps_sizes=self.keeps_sizes,
        )

    def explain(self, snapshot: Snapshot, allocation: Allocation, job: str) -> Reason:
        """Why ``job`` has the workers it has in ``allocation``."""
        return self.explainer(snapshot, allocation).reason(job)


def ordered(snapshot: Snapshot, rules: Rules, keys: Sequence[float] | None = None) -> list[int]:
    """Rows of the snapshot in the order in which they are served; ties (all, without ``keys``) by submission."""
    jobs = snapshot.jobs
    rows = list(range(len(jobs)))
    if keys is not None:
        rows.sort(key=keys.__getitem__)
    if rules.urgent(jobs) or any(job.spec.priority for job in jobs):
        rows.sort(key=lambda row: rules.rank(jobs[row]))  # equal ranks stay in their order
    return rows
