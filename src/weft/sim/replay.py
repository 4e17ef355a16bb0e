"""The control loop in virtual time: replays a workload under one policy.

    arrivals, ends, failures  ->  events  ->  weft.control.reducer  ->  actions  ->  simulated engine  ->  events ...
    decision: state and beliefs  ->  weft.control.decision  ->  DevicesAssigned, an event like the others

Life cycle and decisions are the controller's; only time, workers and beliefs are simulated.  A decision is made at the
next tick after the reducer requested one, a job has started, or the last allocation has expired
(``Allocation.valid_until_s``).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from weft.control.decision import SharingTerms, decide
from weft.control.draft import altered
from weft.control.job_table import JobTable
from weft.control.reducer import reduce
from weft.control.state import Job, State
from weft.core.actions import KillWorkers, StartWorkers, StopWorkers
from weft.core.cluster import Cluster
from weft.core.engine import StartOrder
from weft.core.events import Event, JobSubmitted, NodeFailed, NodeRepaired, WorkersExited
from weft.core.job import Launch
from weft.core.plural import plural
from weft.core.reason import NoReport, Reason, in_words
from weft.core.snapshot import Policy
from weft.elastic import assignment_problem
from weft.errors import UsageError
from weft.sim.beliefs import SimulatedBeliefs
from weft.sim.outages import NodeOutage, outages
from weft.sim.replay_options import SimulationOptions
from weft.sim.result import Recorder, SimulationResult
from weft.sim.simulated_engine import SimulatedEngine
from weft.sim.workload import TrueJob, Workload

Progress = Callable[[int, int], None]

_NEVER = float("inf")
_FAILURES_PER_NODE = 100
_LEAST_PROGRESS = 0.001
"""If, while every node fails this often, no job gets closer to its end by this share, the replay would never end."""
_NOTHING_TO_LAUNCH = Launch((), "")


def simulate(
    workload: Workload,
    cluster: Cluster,
    policy: Policy,
    options: SimulationOptions | None = None,
    progress: Progress | None = None,
) -> SimulationResult:
    """Replay ``workload`` on ``cluster`` under ``policy``; calls ``progress`` with (finished jobs, all jobs)."""
    replay = _Replay(workload, cluster, policy, options or SimulationOptions(), progress)
    replay.refuse_beyond_quotas()
    assignment_problem.load()  # here, and not within the first decision that repacks nodes
    return replay.run()


def continued(
    state: State,
    now_s: float,
    jobs: Mapping[str, TrueJob],
    tried: Mapping[str, frozenset[int]],
    guessed: frozenset[str],
    fixed: frozenset[str],
    policy: Policy,
    options: SimulationOptions,
    quotas: Mapping[str, int],
) -> SimulationResult:
    """Replay what is left of the active jobs of ``state``: those that have devices run on them from the beginning.

    ``jobs``: their true behavior from now on; ``tried``: sizes at which they were measured; ``guessed``: those whose
    length is not known; ``fixed``: those that must not be stopped.
    """
    ordered = sorted(jobs.values(), key=lambda job: job.spec.submitted_s)
    replay = _Replay(Workload("queue", tuple(ordered), quotas), state.cluster, policy, options, None)
    replay.fixed = fixed
    replay.refuse_beyond_quotas(running=frozenset(name for name in fixed if state.jobs.active[name].devices))
    replay.take_over(state, now_s, tried, guessed)
    return replay.run()


class _Replay:
    def __init__(
        self,
        workload: Workload,
        cluster: Cluster,
        policy: Policy,
        options: SimulationOptions,
        progress: Progress | None,
    ) -> None:
        self.workload, self.policy, self.options, self.progress = workload, policy, options, progress
        self.cluster = cluster
        self.state = State(cluster)
        self.engine = SimulatedEngine(cluster, options)
        self.beliefs = SimulatedBeliefs(cluster, options)
        self.sharing = SharingTerms(options.handover_s) if options.crossover else None
        self.recorder = Recorder(enabled=options.record)
        self.num_finished = 0
        self.num_failures = 0
        self.left_steps: Mapping[str, float] = {}
        """Remaining steps of the active jobs when they were last checked for progress."""
        self.due_s = _NEVER
        self.arrivals = iter(workload.jobs)
        self.fixed: frozenset[str] = frozenset()
        for job in workload.jobs:
            if not job.spec.allowed_sizes(cluster.most_of_one_kind):
                raise UsageError(
                    f"job {job.spec.id} needs at least {plural(job.spec.min_workers, 'worker')}, this cluster has "
                    f"{plural(cluster.most_of_one_kind, 'device')}{' of one kind' if cluster.is_mixed else ''}: "
                    "lower its minimum or add nodes"
                )

    def refuse_beyond_quotas(self, running: frozenset[str] = frozenset()) -> None:
        """A job whose user's quota is too small would wait forever, and policies would reconsider it forever.

        Those ``running``, which must not be stopped, keep what they have.
        """
        quotas = self.workload.quotas
        for job in self.workload.jobs if quotas else ():
            spec, quota = job.spec, quotas.get(job.spec.user)
            least = spec.allowed_sizes(self.cluster.most_of_one_kind)[0]
            if quota is not None and least > quota and spec.id not in running:
                raise UsageError(
                    f"job {spec.id} needs at least {plural(least, 'worker')}, but the quota of {spec.user} is {quota}: "
                    "raise the quota or lower the job's minimum"
                )

    def take_over(
        self, state: State, now_s: float, tried: Mapping[str, frozenset[int]], guessed: frozenset[str]
    ) -> None:
        """Start with these jobs as they are, instead of with their submission."""
        engine, true = self.engine, {job.spec.id: job for job in self.arrivals}
        engine.now_s = self.due_s = now_s
        active = [altered(job, {"spec": true[job.id].spec}) for job in state.jobs.active.values()]
        self.state = replace(state, jobs=JobTable(active))
        for job in active:
            run = engine.add(true[job.id])
            run.tried = {*tried[job.id], *([len(job.devices)] if job.devices else [])}
            self.beliefs.add(run)
            self.beliefs.taken_over(run, is_length_known=job.id not in guessed)
            self.beliefs.by_job[job.id].can_share = bool(run.tried)
            if job.devices:
                engine.adopt(job.id, job.attempt, job.devices)
        for job in active:
            if job.fills:
                engine.give_role(job.id, fills=True)
        self.recorder.reassigned(now_s, [(altered(job, {"devices": ()}), job) for job in active])
        self.recorder.busy(now_s, engine.num_busy)

    def run(self) -> SimulationResult:
        began = time.perf_counter()
        engine = self.engine
        upcoming = next(self.arrivals, None)
        failures: Iterator[NodeOutage] = outages(self.cluster, self.options)
        outage = next(failures, None)
        num_jobs = len(self.workload.jobs)
        while self.num_finished < num_jobs:
            arrival_s = upcoming.spec.submitted_s if upcoming else _NEVER
            predicted_s = engine.next_s()
            outage_s = outage.time_s if outage else _NEVER
            now_s = engine.now_s = min(arrival_s, predicted_s, outage_s, self.due_s)
            if now_s == _NEVER:
                raise UsageError(
                    f"policy {self.policy.name} leaves {', '.join(list(self.state.jobs.active)[:3])} waiting on "
                    f"{self.state.cluster.num_devices} devices forever: check quotas, sizes, and the cluster"
                )
            if predicted_s == now_s:
                self._ends(now_s)
            elif arrival_s == now_s and upcoming:
                self._arrival(now_s, upcoming)
                upcoming = next(self.arrivals, None)
            elif outage_s == now_s and outage:
                self._outage(now_s, outage)
                outage = next(failures, None)
            else:
                self._decide(now_s)
        wall_s = time.perf_counter() - began
        return self.recorder.result(self.workload.name, self.policy.name, self.cluster, self.state, engine.runs, wall_s)

    def _feed(self, event: Event) -> None:
        """Apply one event, and everything that follows from it at the same time."""
        engine, state = self.engine, self.state
        pending = [event]
        for one in pending:  # grows during iteration: the engine's answers come last
            state, actions = reduce(state, one)
            for action in actions:
                if isinstance(action, StartWorkers):
                    engine.start(StartOrder(action.job_id, action.attempt, action.devices, _NOTHING_TO_LAUNCH))
                elif isinstance(action, StopWorkers):
                    engine.stop(action.job_id, action.attempt)
                elif isinstance(action, KillWorkers):
                    engine.kill(action.job_id, action.attempt)
                elif state.jobs.active:
                    self._call_for_decision(engine.now_s)
            if isinstance(one, WorkersExited):
                engine.forget(one.job_id, one.attempt)
            pending.extend(engine.answers())
        self.state = state

    def _call_for_decision(self, at_s: float) -> None:
        step_s = self.options.decision_interval_s
        if step_s and at_s < _NEVER:
            tick_s = math.ceil(at_s / step_s) * step_s
            at_s = tick_s if tick_s >= at_s else tick_s + step_s
        self.due_s = min(self.due_s, at_s)

    def _arrival(self, now_s: float, job: TrueJob) -> None:
        self.beliefs.add(self.engine.add(job))
        self._feed(JobSubmitted(now_s, job.spec))

    def _ends(self, now_s: float) -> None:
        for event in self.engine.poll():
            job = self.state.jobs.active[event.job_id]
            partner = self.state.jobs.active[job.partner] if job.partner else None
            self._feed(event)
            self.recorder.left(now_s, job)
            if partner:
                self.recorder.left_alone(now_s, partner)
            self.num_finished += 1
            self.beliefs.remove(event.job_id)
            if self.progress:
                self.progress(self.num_finished, len(self.workload.jobs))
        self.recorder.busy(now_s, self.engine.num_busy)
        for run in self.engine.restaged:
            self.beliefs.restaged(run)
        self.engine.restaged.clear()
        if self.engine.measured:
            for run in self.engine.measured:
                self.beliefs.measured(run)
            self.engine.measured.clear()
            self._call_for_decision(now_s + self.options.decision_interval_s)

    def _outage(self, now_s: float, outage: NodeOutage) -> None:
        before = self.state.jobs.active
        self._feed((NodeFailed if outage.down else NodeRepaired)(now_s, outage.node))
        for name, job in self.state.jobs.active.items():
            if before[name].devices and not job.devices:
                self.recorder.left(now_s, before[name])
        self.recorder.busy(now_s, self.engine.num_busy)
        self.num_failures += outage.down
        if outage.down and self.num_failures % (_FAILURES_PER_NODE * self.cluster.num_nodes) == 0:
            self._refuse_to_stand_still()

    def _refuse_to_stand_still(self) -> None:
        before = self.left_steps
        left = self.left_steps = {name: self.engine.runs[name].remaining_steps for name in self.state.jobs.active}
        if before and all(left.get(name, 0.0) > (1 - _LEAST_PROGRESS) * steps for name, steps in before.items()):
            options = self.options
            raise UsageError(
                f"policy {self.policy.name}: nodes fail so often (every {options.node_mtbf_s:g} s on average) that "
                f"jobs make no progress: expected much longer than a start ({options.restart_s:g} s) and the time "
                f"between decisions ({options.decision_interval_s:g} s): raise --node-mtbf-s"
            )

    def _decide(self, now_s: float) -> None:
        self.due_s = _NEVER
        began = time.perf_counter()
        starting = self.beliefs.update(now_s)
        decided = decide(
            self.state,
            self.beliefs.by_job,
            self.policy,
            now_s,
            untouchable=starting | {name for name in self.fixed if self.engine.runs[name].devices},
            quotas=self.workload.quotas,
            sharing=self.sharing,
        )
        if decided.changed:
            before = self.state.jobs.active
            self._feed(decided.event)
            self._note_changes(now_s, before)
        self.recorder.decision(time.perf_counter() - began)
        allocation = decided.allocation
        if self.state.jobs.active:
            self._call_for_decision(max(allocation.valid_until_s, now_s + (self.options.decision_interval_s or 1.0)))
        for name in starting:
            if self.engine.runs[name].resume_s > now_s:  # otherwise the next decision follows its measurement
                self._call_for_decision(self.engine.runs[name].resume_s)
        for name in self.options.explained_jobs & self.state.jobs.active.keys():
            if name in decided.untouched:
                workers = len(self.state.jobs[name].devices)
                reason: Reason = NoReport(workers)
            else:
                workers = allocation.workers.get(name, 0)
                reason = self.policy.explain(decided.snapshot, allocation, name)
            self.recorder.explain(now_s, name, workers, in_words(reason))

    def _note_changes(self, now_s: float, before: Mapping[str, Job]) -> None:
        changes: list[tuple[Job, Job]] = []
        for name, new in self.state.jobs.active.items():
            old = before[name]
            if old is new:
                continue
            if old.devices != new.devices or old.partner != new.partner or old.fills != new.fills:
                changes.append((old, new))
                if new.partner is not None:
                    self.engine.give_role(name, fills=new.fills)
        self.recorder.reassigned(now_s, changes)
        self.recorder.busy(now_s, self.engine.num_busy)
