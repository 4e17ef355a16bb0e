"""A live decision: state and knowledge -> snapshot -> policy -> allocation -> placement -> one event.

The policy objects are those of the simulator, and see the same kind of snapshot.  What is particular to real jobs:

- A job that has not reported since it was started, or cannot go on after a stop, keeps its devices: stopping it
  would lose its work.  The policy sees it as pinned, and placement does not see its devices.
- What was decided and is not yet carried out (a job that still stops, one that waits for devices to come free)
  counts as if it were: the next decision does not turn it round again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from weft.control.state import Job, JobState, State
from weft.core.cluster import Cluster
from weft.core.events import DevicesAssigned
from weft.core.job import JobSpec
from weft.core.snapshot import Allocation, JobView, Snapshot
from weft.daemon import admission
from weft.daemon.knowledge import Knowledge
from weft.elastic.optimal import UtilityPolicy
from weft.elastic.placement import Devices, Unit, place
from weft.elastic.policy import BasePolicy
from weft.elastic.queues import FixedSizePolicy
from weft.elastic.registry import policy_named
from weft.elastic.rules import Rules

_MIN_HOLD_S = 1e-3


@dataclass(frozen=True, slots=True)
class SchedulingOptions:
    """What `weft up` can set."""

    policy: str = "balanced"
    hold_s: float = 10.0
    """A job whose workers were just changed is left alone for so long."""
    review_s: float = 60.0
    usual_s: float = 60.0
    """How long a job is thought to run of which nothing is known."""
    crossover: bool = False
    handover_s: float = 0.0
    why_unshared: str = ""
    """What is said of jobs that wait where devices are not shared."""
    quotas: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Verdict:
    """One decision, whether or not it changed anything."""

    snapshot: Snapshot
    allocation: Allocation
    kept: frozenset[str]
    """Jobs that had to be left where they are."""
    event: DevicesAssigned | None
    """What to write down; ``None`` when everything stays as it is."""


class Scheduler:
    """Decides for one controller; remembers only who has been told why he waits."""

    def __init__(self, options: SchedulingOptions, free_bytes: Callable[[], int | None] = lambda: None) -> None:
        """``free_bytes``: memory that jobs could still have on this machine, if that should be looked at."""
        self.options = options
        self._free_bytes = free_bytes
        # Jobs that must not be stopped are shown to the policy as pinned: some hold time there must always be.
        rules = Rules(hold_s=max(options.hold_s, _MIN_HOLD_S), review_s=options.review_s)
        self.policy: BasePolicy = policy_named(options.policy, rules)
        self._pairs_jobs = isinstance(self.policy, UtilityPolicy)
        self._told: set[str] = set()

    def decide(self, state: State, knowledge: Knowledge, now_s: float) -> Verdict:
        """Who should have which devices from now on."""
        active = [job for job in state.jobs.active.values() if not job.is_cancelled]
        snapshot, kept = self._snapshot(state.cluster, active, knowledge, now_s)
        allocation = self.policy.decide(snapshot)
        devices = _placed(state.cluster, active, kept, allocation)
        still = [job for job in active if job.id in kept and job.partner is not None]
        partners = allocation.partners() | {job.id: job.partner for job in still if job.partner is not None}
        fillers = allocation.fillers | {job.id for job in still if job.fills}
        waiting = {job.id for job in active if job.id not in devices}
        changed = [
            job
            for job in active
            if devices.get(job.id, ()) != job.wanted
            or partners.get(job.id) != job.wanted_partner
            or (job.id in fillers) != job.wanted_fills
        ]
        untold = [job for job in active if job.id in waiting - self._told]
        self._told = waiting
        event = None
        if changed or untold:
            free_bytes = self._free_bytes() if self.options.crossover else None
            reasons = {
                job.id: self._why(snapshot, allocation, kept, job, active, knowledge, free_bytes)
                for job in (*changed, *untold)
            }
            event = DevicesAssigned(now_s, devices, partners, fillers, reasons)
        return Verdict(snapshot, allocation, kept, event)

    def repeat(self) -> None:
        """The last decision came to nothing: nobody was told anything."""
        self._told = set()

    def explain(self, verdict: Verdict, job: Job, state: State, knowledge: Knowledge) -> str | None:
        """Why the job has what it has, by the last decision; ``None`` if that one did not know it."""
        if job.id not in verdict.kept and all(view.name != job.id for view in verdict.snapshot.jobs):
            return None
        active = [other for other in state.jobs.active.values() if not other.is_cancelled]
        free_bytes = self._free_bytes() if self.options.crossover else None
        return self._why(verdict.snapshot, verdict.allocation, verdict.kept, job, active, knowledge, free_bytes)

    def outlook(
        self, state: State, knowledge: Knowledge, spec: JobSpec, total_steps: int | None, now_s: float
    ) -> tuple[int, str]:
        """What would become of a job were it here now: workers, and why."""
        active = [job for job in state.jobs.active.values() if not job.is_cancelled]
        newcomer = Job(spec, len(state.jobs), total_steps, submitted_s=now_s, changed_s=now_s)
        snapshot, _ = self._snapshot(state.cluster, [*active, newcomer], knowledge, now_s)
        allocation = self.policy.decide(snapshot)
        return allocation.workers.get(spec.name, 0), self.policy.explain(snapshot, allocation, spec.name)

    def _snapshot(
        self, cluster: Cluster, active: list[Job], knowledge: Knowledge, now_s: float
    ) -> tuple[Snapshot, frozenset[str]]:
        fixed = {job.id: job for job in active if job.state is JobState.RUNNING and not knowledge.is_movable(job)}
        kept = frozenset(fixed) | {job.partner for job in fixed.values() if job.partner}
        options = self.options
        # Of two that share devices and must stay only one is shown, or their devices would count twice.
        shown = [job for job in active if job.id not in kept or job.partner is None or job.id < job.partner]
        views = tuple(self._view(job, job.id in kept, cluster, knowledge, now_s) for job in shown)
        if not options.crossover:
            return Snapshot(now_s, cluster, views, options.quotas), kept
        alone = admission.alone(active, cluster, knowledge)
        apart = admission.apart(active, alone, knowledge, self._free_bytes(), now_s)
        return Snapshot(now_s, cluster, views, options.quotas, True, options.handover_s, alone, apart), kept

    def _view(self, job: Job, is_kept: bool, cluster: Cluster, knowledge: Knowledge, now_s: float) -> JobView:
        curve = knowledge.present_curve(job) if is_kept else knowledge.curve(job, self._first_sizes(job.spec, cluster))
        since_s = max(now_s - job.changed_s, 0.0)
        is_settled = bool(job.devices) and job.devices == job.wanted and not is_kept
        return JobView(
            job.spec,
            curve,
            knowledge.remaining_steps(job, curve, now_s, self.options.usual_s),
            knowledge.restart_s(job.id),
            len(job.wanted),
            None if is_kept else job.partner,
            job.attained_device_s + len(job.devices) * since_s,
            0.0 if job.wanted else since_s,
            since_s if is_settled else 0.0,
            job.num_restarts,
        )

    def _first_sizes(self, spec: JobSpec, cluster: Cluster) -> tuple[int, ...]:
        """Where a job is first tried: as small as it may be, under a policy that never resizes as large as it asked."""
        allowed = spec.allowed_sizes(cluster.num_devices) or (spec.min_workers,)
        if not isinstance(self.policy, FixedSizePolicy):
            return allowed[:1]
        return (max((size for size in allowed if size <= spec.requested_workers), default=allowed[0]),)

    def _why(
        self,
        snapshot: Snapshot,
        allocation: Allocation,
        kept: frozenset[str],
        job: Job,
        active: Sequence[Job],
        knowledge: Knowledge,
        free_bytes: int | None,
    ) -> str:
        if job.id in kept:
            shared = f", which it shares with {job.partner}," if job.partner else ""
            return (
                f"{job.id} has {len(job.devices)} of {snapshot.cluster.num_devices} devices{shared} and keeps them: "
                "it has reported no progress it could go on from, stopping it would lose its work"
            )
        sentence = self.policy.explain(snapshot, allocation, job.id)
        partner = allocation.partners().get(job.id)
        if partner is not None:
            about = admission.about_pair(job.id, partner, snapshot, allocation, knowledge)
        elif not self._pairs_jobs or not admission.outnumbers(active, snapshot.cluster):
            about = None
        elif not self.options.crossover:
            about = self.options.why_unshared
        else:
            about = admission.why_alone(job, active, snapshot, knowledge, free_bytes)
        return f"{sentence}; {about}" if about else sentence


def _placed(cluster: Cluster, active: list[Job], kept: frozenset[str], allocation: Allocation) -> dict[str, Devices]:
    """Devices for everybody who gets some; ``kept`` jobs where they are, the others around them."""
    fixed = {job.id: job.devices for job in active if job.id in kept}
    taken = {device for devices in fixed.values() for device in devices}
    free = [
        [
            device
            for device in range(first, first + num)
            if device not in taken and cluster.node_of(device) not in cluster.failed_nodes
        ]
        for first, num in zip(cluster.first_device, cluster.devices_by_node, strict=True)
    ]
    real = [device for devices in free for device in devices]
    partners = allocation.partners()
    units = []
    for job in active:
        workers, partner = allocation.workers.get(job.id, 0), partners.get(job.id)
        if workers and job.id not in kept and (partner is None or job.id < partner):
            units.append(Unit((job.id,) if partner is None else (job.id, partner), workers))
    if not units:
        return fixed
    number = {device: index for index, device in enumerate(real)}
    current = {
        job.id: tuple(number[device] for device in job.wanted)
        for job in active
        if job.wanted and all(device in number for device in job.wanted)
    }
    rest = Cluster(tuple(len(devices) for devices in free if devices))
    placed = place(rest, units, current)
    return fixed | {name: tuple(real[index] for index in indexes) for name, indexes in placed.items()}
