"""What all policies have in common: rules, menus, and reasons."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import replace

from weft.core.reason import Reason
from weft.core.snapshot import Allocation, Snapshot
from weft.elastic.explainer import DecisionExplainer, Explainer
from weft.elastic.kind_explainer import MixedExplainer
from weft.elastic.kind_turns import decide_in_turn
from weft.elastic.menu import MenuBook, next_larger
from weft.elastic.rules import Rules


class BasePolicy(ABC):
    """A policy by name; subclasses say how sizes are chosen and why."""

    name: str
    because: str
    """The policy's goal in words, for ``weft explain``."""
    default_rules = Rules()
    aligned = True
    """Whether only sizes that fill nodes evenly are offered."""
    keeps_sizes = False
    """Whether every job runs at the size it asked for."""
    keeps_order = True
    """Whether a job that does not fit gets its first start in order of submission, whatever the policy prefers."""

    def __init__(self, rules: Rules | None = None) -> None:
        self.rules = replace(rules or self.default_rules, keeps_order=self.keeps_order)
        self._book = MenuBook(aligned=self.aligned)
        self._by_kind: dict[str, BasePolicy] = {}

    def decide(self, snapshot: Snapshot) -> Allocation:
        """The workers each job should have from now on."""
        if not snapshot.jobs or not snapshot.num_devices:
            return Allocation({})
        return self._decide_mixed(snapshot) if snapshot.cluster.is_mixed else self._decide(snapshot)

    @abstractmethod
    def _decide(self, snapshot: Snapshot) -> Allocation:
        """The decision in a cluster of one device kind."""

    def _decide_mixed(self, snapshot: Snapshot) -> Allocation:
        """The decision in a cluster of several."""
        return decide_in_turn(self._on_each_kind(snapshot), snapshot)

    def _on_each_kind(self, snapshot: Snapshot) -> Mapping[str, BasePolicy]:
        """One copy of this policy per device kind, each with its own menus."""
        for kind in snapshot.cluster.kind_names:
            if kind not in self._by_kind:
                one = self._by_kind[kind] = copy(self)
                one._book, one._by_kind = MenuBook(aligned=self.aligned), {}
        return self._by_kind

    def explainer(self, snapshot: Snapshot, allocation: Allocation) -> DecisionExplainer:
        """The reasons behind a decision of this policy."""
        if snapshot.cluster.is_mixed:
            policies = self._on_each_kind(snapshot)
            return MixedExplainer(snapshot, allocation, lambda kind, *part: policies[kind].explainer(*part))
        return Explainer(
            self.name,
            self.rules,
            lambda view: self._book.menus(snapshot.cluster, (view,))[0],
            snapshot,
            allocation,
            aligned=self.aligned,
            keeps_sizes=self.keeps_sizes,
            larger=self.larger,
        )

    def larger(self, sizes: Sequence[int], size: int) -> int | None:
        """The size that a job with ``size`` workers gets next."""
        return next_larger(sizes, size)

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
