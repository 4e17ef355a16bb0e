"""What a policy sees, and what it returns.

A decision goes one way: :class:`Snapshot` -> policy -> :class:`Allocation` -> placement -> actions; the same in the
simulator and in the controller.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from weft.core.cluster import Cluster
from weft.core.job import JobSpec
from weft.core.reason import Reason
from weft.core.speed import SpeedCurve


@dataclass(slots=True, unsafe_hash=True)
class JobView:
    """One unfinished job at the time of a decision.

    Never modified.  Not frozen, because creating a frozen one takes five times as long, and every decision creates one
    for every job.
    """

    spec: JobSpec
    curve: SpeedCurve
    """Step times at the sizes the job can get now (while exploring: not far beyond those tried)."""
    remaining_steps: float
    """Estimated."""
    restart_s: float = 0.0
    """Time the job loses when it is stopped and started on other devices."""
    workers: int = 0
    """Workers by the last decision, even if it has not been carried out yet; 0 while it waits."""
    partner: str | None = None
    """The job it shares those devices with, if any."""
    attained_device_s: float = 0.0
    """Devices held x time so far."""
    waited_s: float = 0.0
    """How long it has neither held devices nor been promised any; 0 while it holds some."""
    settled_s: float = 0.0
    """How long it has had the devices of the last decision; 0 until it has them."""
    num_restarts: int = 0
    is_next: bool = False
    """Whether it is waiting for its first start and would have started by now under first in, first out."""
    is_length_known: bool = True
    """Whether ``remaining_steps`` follows from a declared length; otherwise it is a guess."""
    kind: str = ""
    """The device kind of its ``workers``; empty while it waits, and in a cluster of one kind."""
    curves: tuple[tuple[str, SpeedCurve], ...] = ()
    """In a cluster of several device kinds: the speed on each kind it can run on.  ``curve`` is then the one on its
    current kind or, while it waits, on the kind where it is fastest."""

    @property
    def id(self) -> str:
        return self.spec.id


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The whole state at the time of a decision.  ``jobs`` are in order of submission, ids unique."""

    now_s: float
    cluster: Cluster
    jobs: tuple[JobView, ...]
    quotas: Mapping[str, int] = field(default_factory=dict)
    """Maximum number of devices a user's jobs may hold together; users not listed have no limit."""
    crossover: bool = False
    """Whether two jobs may take turns on the same devices."""
    handover_s: float = 0.0
    """Cost of one handover of a device between two jobs."""
    alone: frozenset[str] = frozenset()
    """Jobs that must not share now, even if their owners allow it."""
    apart: frozenset[frozenset[str]] = frozenset()
    """Pairs of jobs that must not share."""
    num_held: int = 0
    """Devices that cannot be assigned: those of jobs that must not be touched, which are not in ``jobs``."""
    held_by_kind: Mapping[str, int] = field(default_factory=dict)
    """The same by device kind; empty in a cluster of one kind."""

    @property
    def num_devices(self) -> int:
        """Devices that can be assigned to ``jobs``."""
        return self.cluster.num_devices - self.num_held

    def num_of_kind(self, kind: str) -> int:
        """Devices of this kind that can be assigned to ``jobs``."""
        return self.cluster.by_kind[kind].num_devices - self.held_by_kind.get(kind, 0)

    def of_kind(self, kind: str, jobs: Iterable[JobView]) -> Snapshot:
        """Those of ``jobs`` that can run on this kind, as if there were no other devices."""
        views = []
        for job in jobs:
            curve = dict(job.curves).get(kind)
            if curve is not None:
                at_home = job.kind == kind
                views.append(
                    replace(
                        job,
                        curve=curve,
                        curves=(),
                        kind="",
                        workers=job.workers if at_home else 0,
                        partner=job.partner if at_home else None,
                        settled_s=job.settled_s if at_home else 0.0,
                    )
                )
        return replace(
            self,
            cluster=self.cluster.by_kind[kind],
            jobs=tuple(views),
            num_held=self.held_by_kind.get(kind, 0),
            held_by_kind={},
        )


@dataclass(frozen=True, slots=True)
class Allocation:
    """Workers by job.  Jobs that are missing, or have 0, get none.

    Both jobs of a pair have the same number of workers and use the same devices, which count once.
    """

    workers: Mapping[str, int]
    pairs: tuple[tuple[str, str], ...] = ()
    fillers: frozenset[str] = frozenset()
    """Jobs that run only in the gaps of their partner, which keeps its speed; other pairs take turns."""
    valid_until_s: float = float("inf")
    """The policy would decide the same until then, as long as no job arrives, ends, or changes."""
    kept: frozenset[str] = frozenset()
    """Jobs that stay on their devices, even if placement would prefer others."""
    kinds: Mapping[str, str] = field(default_factory=dict)
    """The device kind of each job with workers; empty in a cluster of one kind."""

    def num_devices(self) -> int:
        """Devices in use, those of a pair counted once."""
        return sum(self.workers.values()) - sum(self.workers[first] for first, _ in self.pairs)

    def partners(self) -> dict[str, str]:
        """The partner of each job that has one."""
        both = dict(self.pairs)
        return both | {second: first for first, second in self.pairs}


class Policy(Protocol):
    """Decides how many workers each job gets.  No I/O, no hidden state: same snapshot, same allocation."""

    @property
    def name(self) -> str:
        """Its name on the command line."""

    def decide(self, snapshot: Snapshot) -> Allocation:
        """The workers each job should have from now on."""

    def explain(self, snapshot: Snapshot, allocation: Allocation, job: str) -> Reason:
        """Why ``job`` has the workers it has in ``allocation``."""
