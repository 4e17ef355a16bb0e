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

from weft.control.decision import SharingTerms, decide
from weft.control.reducer import reduce
from weft.control.state import Job, State
from weft.core.actions import KillWorkers, StartWorkers, StopWorkers
from weft.core.cluster import Cluster
from weft.core.engine import StartOrder
from weft.core.events import Event, JobSubmitted, NodeFailed, NodeRepaired, WorkersExited
from weft.core.job import Launch
from weft.core.snapshot import Policy
from weft.errors import UsageError
from weft.sim.beliefs import SimulatedBeliefs
from weft.sim.outages import NodeOutage, outages
from weft.sim.replay_options import SimulationOptions
from weft.sim.result import Recorder, SimulationResult
from weft.sim.simulated_engine import SimulatedEngine
from weft.sim.workload import TrueJob, Workload

Progress = Callable[[int, int], None]

_NEVER = float("inf")
_NOTHING_TO_LAUNCH = Launch((), "")


def simulate(
    workload: Workload,
    cluster: Cluster,
    policy: Policy,
    options: SimulationOptions | None = None,
    progress: Progress | None = None,
) -> SimulationResult:
    """Replay ``workload`` on ``cluster`` under ``policy``; calls ``progress`` with (finished jobs, all jobs)."""
    return _Replay(workload, cluster, policy, options or SimulationOptions(), progress).run()


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
        self.due_s = _NEVER
        for job in workload.jobs:
            if not job.spec.allowed_sizes(cluster.num_devices):
                raise UsageError(
                    f"job {job.spec.id} needs at least {job.spec.min_workers} workers, this cluster has "
                    f"{cluster.num_devices} devices: lower its minimum or add nodes"
                )

    def run(self) -> SimulationResult:
        began = time.perf_counter()
        engine = self.engine
        arrivals = iter(self.workload.jobs)
        upcoming = next(arrivals, None)
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
                    f"{self.state.cluster.num_devices} devices forever: check quotas, sizes and the cluster"
                )
            if predicted_s == now_s:
                self._ends(now_s)
            elif arrival_s == now_s and upcoming:
                self._arrival(now_s, upcoming)
                upcoming = next(arrivals, None)
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

    def _decide(self, now_s: float) -> None:
        self.due_s = _NEVER
        began = time.perf_counter()
        starting = self.beliefs.update(now_s)
        decided = decide(
            self.state,
            self.beliefs.by_job,
            self.policy,
            now_s,
            untouchable=starting,
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
            self._call_for_decision(self.engine.runs[name].resume_s)
        for name in self.options.explained_jobs & self.state.jobs.active.keys():
            if name in decided.untouched:
                workers = len(self.state.jobs[name].devices)
                sentence = f"{name} is starting on {workers} devices and keeps them until its first step"
            else:
                workers = allocation.workers.get(name, 0)
                sentence = self.policy.explain(decided.snapshot, allocation, name)
            self.recorder.explain(now_s, name, workers, sentence)

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
