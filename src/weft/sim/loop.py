"""The event loop: replays a workload on virtual time under one policy.

    arrivals, ends, resumptions, failures  ->  decision due at the next tick
    decision: runs -> Snapshot -> policy -> Allocation -> placement -> assign / release

A decision is made only when something happened since the last one, or when the policy itself said that its
answer would not hold longer (``Allocation.valid_until_s``).
"""

from __future__ import annotations

import heapq
import math
import time
from collections.abc import Callable, Iterator

from weft.core.cluster import Cluster
from weft.core.snapshot import Allocation, JobView, Policy, Snapshot
from weft.elastic.placement import Unit, place
from weft.errors import UsageError
from weft.sim.failures import NodeOutage, outages
from weft.sim.knowledge import Knowledge
from weft.sim.lifecycle import JobRun, advance, assign, finish, finish_time_s, rate, release, submit
from weft.sim.options import SimulationOptions
from weft.sim.record import Recorder
from weft.sim.result import SimulationResult
from weft.sim.workload import Workload

Progress = Callable[[int, int], None]

_FINISH, _RESUME = 0, 1
_NEVER = float("inf")


def simulate(
    workload: Workload,
    cluster: Cluster,
    policy: Policy,
    options: SimulationOptions | None = None,
    progress: Progress | None = None,
) -> SimulationResult:
    """Replay ``workload`` on ``cluster`` under ``policy``; ``progress`` hears of (finished, all) jobs."""
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
        self.whole_cluster = self.cluster = cluster
        self.knowledge = Knowledge(cluster, options)
        self.recorder = Recorder(enabled=options.record)
        self.active: dict[str, JobRun] = {}
        self.done: list[JobRun] = []
        self.due_s = _NEVER
        self.num_busy = 0
        self.predictions: list[tuple[float, int, int, int, JobRun]] = []
        """Heap of (time, kind, index of job, version, run): ends and resumptions that hold if nothing
        changes."""
        for job in workload.jobs:
            if not job.spec.allowed_sizes(cluster.num_devices):
                raise UsageError(
                    f"job {job.spec.name} needs at least {job.spec.min_workers} workers, this cluster has "
                    f"{cluster.num_devices} devices: lower its minimum or add nodes"
                )

    def run(self) -> SimulationResult:
        began = time.perf_counter()
        arrivals = iter(enumerate(self.workload.jobs))
        upcoming = next(arrivals, None)
        failures: Iterator[NodeOutage] = outages(self.whole_cluster, self.options)
        outage = next(failures, None)
        num_jobs = len(self.workload.jobs)
        while len(self.done) < num_jobs:
            arrival_s = upcoming[1].spec.submitted_s if upcoming else _NEVER
            self._drop_stale()
            predicted_s = self.predictions[0][0] if self.predictions else _NEVER
            outage_s = outage.time_s if outage else _NEVER
            now_s = min(arrival_s, predicted_s, outage_s, self.due_s)
            if now_s == _NEVER:
                raise UsageError(
                    f"policy {self.policy.name} leaves {', '.join(list(self.active)[:3])} waiting on "
                    f"{self.cluster.num_devices} devices for ever: check quotas, sizes and the cluster"
                )
            if predicted_s == now_s:
                self._predicted(now_s)
            elif arrival_s == now_s and upcoming:
                run = submit(upcoming[1], upcoming[0])
                self.active[run.name] = run
                self.recorder.event(now_s, "submitted", run.name)
                upcoming = next(arrivals, None)
                self._call_for_decision(now_s)
            elif outage_s == now_s and outage:
                self._outage(now_s, outage)
                outage = next(failures, None)
            else:
                self._decide(now_s)
        self.done.sort(key=lambda run: run.index)
        return self.recorder.result(
            self.workload.name, self.policy.name, self.whole_cluster, self.done, time.perf_counter() - began
        )

    def _drop_stale(self) -> None:
        heap = self.predictions
        while heap and heap[0][3] != heap[0][4].version:
            heapq.heappop(heap)

    def _call_for_decision(self, at_s: float) -> None:
        step_s = self.options.decision_interval_s
        if step_s and at_s < _NEVER:
            tick_s = math.ceil(at_s / step_s) * step_s
            at_s = tick_s if tick_s >= at_s else tick_s + step_s
        self.due_s = min(self.due_s, at_s)

    def _predicted(self, now_s: float) -> None:
        _, kind, _, _, run = heapq.heappop(self.predictions)
        advance(run, now_s)
        partner = run.partner
        if partner:
            advance(partner, now_s)
        if kind == _RESUME:
            for one in (run, partner):
                if one:
                    self._rate(one, now_s)
            if self.options.explore and len(run.devices) not in run.tried:
                run.tried.add(len(run.devices))
                self._call_for_decision(now_s + self.options.decision_interval_s)
            return
        self.recorder.span_ended(run, now_s)
        self._busy(now_s, -len(run.devices) if partner is None else 0)
        finish(run, now_s)
        self.recorder.event(now_s, "finished", run.name)
        del self.active[run.name]
        self.done.append(run)
        if self.progress:
            self.progress(len(self.done), len(self.workload.jobs))
        if partner:
            self.recorder.span_ended(partner, now_s)
            partner.partner, partner.fills = None, False
            self.recorder.span_began(partner, now_s)
            self._rate(partner, now_s)
        if self.active:
            self._call_for_decision(now_s)

    def _outage(self, now_s: float, outage: NodeOutage) -> None:
        failed = set(self.cluster.failed_nodes)
        (failed.add if outage.down else failed.discard)(outage.node)
        self.cluster = self.whole_cluster.without(failed)
        self.recorder.event(now_s, "node_failed" if outage.down else "node_repaired", str(outage.node))
        if outage.down:
            lost = [
                run
                for run in self.active.values()
                if any(self.whole_cluster.node_of(device) == outage.node for device in run.devices)
            ]
            gone: set[int] = set()
            for run in lost:
                advance(run, now_s)
                gone.update(run.devices)
                self.recorder.span_ended(run, now_s)
                self.recorder.event(now_s, "paused", run.name, f"node {outage.node} failed")
            self._busy(now_s, -len(gone))
            for run in lost:
                release(run, now_s)
        if self.active:
            self._call_for_decision(now_s)

    def _busy(self, now_s: float, change: int) -> None:
        self.num_busy += change
        self.recorder.busy(now_s, self.num_busy)

    def _rate(self, run: JobRun, now_s: float) -> None:
        rate(run, now_s, self.options.handover_s)
        finish_s = finish_time_s(run)
        if finish_s < _NEVER:
            heapq.heappush(self.predictions, (finish_s, _FINISH, run.index, run.version, run))
        new_size = self.options.explore and len(run.devices) not in run.tried
        if (run.partner or new_size) and now_s < run.resume_s:
            heapq.heappush(self.predictions, (run.resume_s, _RESUME, run.index, run.version, run))

    def _decide(self, now_s: float) -> None:
        self.due_s = _NEVER
        began = time.perf_counter()
        snapshot = self._snapshot(now_s)
        allocation = self.policy.decide(snapshot)
        self._apply(now_s, allocation)
        self.recorder.decision(time.perf_counter() - began)
        if self.active:
            self._call_for_decision(max(allocation.valid_until_s, now_s + (self.options.decision_interval_s or 1.0)))
        for name in self.options.explained_jobs & self.active.keys():
            sentence = self.policy.explain(snapshot, allocation, name)
            self.recorder.explain(now_s, name, allocation.workers.get(name, 0), sentence)

    def _snapshot(self, now_s: float) -> Snapshot:
        restart_s, knowledge = self.options.restart_s, self.knowledge
        views = []
        for run in self.active.values():
            advance(run, now_s)
            held = len(run.devices)
            since_s = now_s - run.changed_s
            views.append(
                JobView(
                    run.job.spec,
                    knowledge.curve(run),
                    knowledge.remaining_steps(run),
                    restart_s,
                    held,
                    run.partner.name if run.partner else None,
                    run.attained_device_s,
                    0.0 if held else since_s,
                    since_s if held else 0.0,
                    run.num_restarts,
                )
            )
        return Snapshot(
            now_s,
            self.cluster,
            tuple(views),
            self.workload.quotas,
            self.options.crossover,
            self.options.handover_s,
        )

    def _apply(self, now_s: float, allocation: Allocation) -> None:
        partners = allocation.partners() if allocation.pairs else {}
        wanted = allocation.workers
        if all(
            wanted.get(name, 0) == len(run.devices)
            and (run.partner.name if run.partner else None) == partners.get(name)
            and run.fills == (name in allocation.fillers)
            for name, run in self.active.items()
        ):
            return
        units = [
            Unit((name, partners[name]) if name in partners else (name,), wanted[name])
            for name in self.active
            if wanted.get(name, 0) and not (name in partners and _comes_later(self.active, name, partners[name]))
        ]
        current = {name: run.devices for name, run in self.active.items() if run.devices}
        placed = place(self.cluster, units, current)
        changed = []
        roles = {name: (run.fills, bool(run.partner and run.partner.fills)) for name, run in self.active.items()}
        for name, run in self.active.items():
            devices = placed.get(name, ())
            partner = self.active[partners[name]] if name in partners else None
            fills = name in allocation.fillers
            filled = partners.get(name) in allocation.fillers
            if devices == run.devices and partner is run.partner and (fills, filled) == roles[name]:
                continue
            changed.append(run)
            had = len(run.devices)
            if had:
                self.recorder.span_ended(run, now_s)
            if not devices:
                release(run, now_s)
                self.recorder.event(now_s, "paused", name)
                continue
            if devices != run.devices:
                kind = "started" if not had else "moved" if had == len(devices) else "resized"
                assign(run, now_s, devices, self.cluster.shape(devices), self.options.restart_s)
                self.recorder.event(now_s, kind, name, _where(devices, partner))
            elif partner is not run.partner or fills != run.fills:
                self.recorder.event(now_s, "shares", name, f"with={partner.name}" if partner else "with=nobody")
            run.partner, run.fills = partner, fills
        for run in changed:
            if run.devices:
                self._rate(run, now_s)
                self.recorder.span_began(run, now_s)
        self._busy(now_s, sum(unit.workers for unit in units) - self.num_busy)


def _comes_later(active: dict[str, JobRun], name: str, partner: str) -> bool:
    return active[name].index > active[partner].index


def _where(devices: tuple[int, ...], partner: JobRun | None) -> str:
    text = f"workers={len(devices)} devices={','.join(map(str, devices))}"
    return f"{text} with={partner.name}" if partner else text
