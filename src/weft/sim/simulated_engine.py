"""An engine without real workers, in virtual time.

The caller sets ``now_s`` and never moves it back.  Workers exist as soon as they are ordered and exit as soon as they
are asked to; the cost of a restart is that they make no progress for a while.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping, Sequence

from weft.core.cluster import Cluster
from weft.core.engine import EngineEvent, EngineNode, StartOrder
from weft.core.events import Fate, WorkersExited, WorkersStarted
from weft.core.job import Launch
from weft.sim.job_run import JobRun, advance, rate, stage_end_s
from weft.sim.replay_options import SimulationOptions
from weft.sim.workload import TrueJob

_FINISH, _RESUME, _STAGE, _MEASURED = 0, 1, 2, 3
_NEVER = float("inf")


class SimulatedEngine:
    """Runs attempts of jobs whose true behavior was given to :meth:`add`."""

    def __init__(self, cluster: Cluster, options: SimulationOptions) -> None:
        self.now_s = 0.0
        self.runs: dict[str, JobRun] = {}
        self.num_busy = 0
        """Devices in use; those of a pair count once."""
        self.measured: list[JobRun] = []
        """Jobs that ran at a size for the first time, where that tells the policy something; the reader clears it."""
        self.restaged: list[JobRun] = []
        """Jobs that have entered another stage of their training; the reader clears it."""
        self._cluster, self._options = cluster, options
        named = zip(cluster.node_names, cluster.devices_by_node, strict=True)
        self._nodes = tuple(EngineNode(name, num) for name, num in named)
        self._answers: list[EngineEvent] = []
        self._known: dict[tuple[str, int], None] = {}
        self._tenants: dict[tuple[int, ...], JobRun] = {}
        self._unrated: list[JobRun] = []
        self._predictions: list[tuple[float, int, int, int, JobRun]] = []
        """Heap of (time, kind, index of job, version, run): when runs finish or resume if nothing changes."""

    def nodes(self) -> tuple[EngineNode, ...]:
        return self._nodes

    def add(self, job: TrueJob) -> JobRun:
        """Allow attempts of this job to be started."""
        run = JobRun(job, len(self.runs), job.total_steps, updated_s=self.now_s)
        self.runs[job.spec.id] = run
        return run

    def start(self, order: StartOrder) -> None:
        """The workers exist immediately and start their first step after what a start costs."""
        run = self.runs[order.job_id]
        if order.attempt <= run.attempt:
            return
        now_s, devices = self.now_s, order.devices
        run.attempt = order.attempt
        run.devices, run.shape = devices, self._cluster.shape(devices)
        if self._cluster.is_mixed:
            run.kind = self._cluster.kind_of(devices)
            run.tried = run.tried_on.setdefault(run.kind, set())
        run.updated_s = now_s
        run.resume_s = now_s + run.job.start_cost_s(self._options.restart_s, is_restart=order.attempt > 1)
        partner = self._tenants.setdefault(devices, run)
        if partner is run:
            self.num_busy += len(devices)
        else:
            advance(partner, now_s)
            run.partner, partner.partner = partner, run
            self._unrated.append(partner)
        self._unrated.append(run)
        self._known[order.job_id, order.attempt] = None
        self._answers.append(WorkersStarted(now_s, order.job_id, order.attempt))

    def adopt(self, job_id: str, attempt: int, devices: tuple[int, ...]) -> None:
        """An attempt that already runs there."""
        self.start(StartOrder(job_id, attempt, devices, Launch((), "")))
        self.runs[job_id].resume_s = self.now_s
        self._answers.clear()

    def stop(self, job_id: str, attempt: int) -> None:
        """They exit immediately, and nothing is lost."""
        self._end(job_id, attempt, Fate.STOPPED)

    def kill(self, job_id: str, attempt: int) -> None:
        """They end immediately.  Their progress is kept: the whole cost of a restart is one number."""
        self._end(job_id, attempt, Fate.LOST)

    def poll(self) -> Sequence[EngineEvent]:
        """Everything that has happened by ``now_s``, oldest first."""
        while self.next_s() <= self.now_s:
            self._happen()
        return self.answers()

    def answers(self) -> Sequence[EngineEvent]:
        """The results of orders since the last call, without what happens by itself."""
        answers, self._answers = self._answers, []
        return answers

    def fileno(self) -> int:
        return -1

    def hints(self) -> Mapping[tuple[str, int], str]:
        return {}

    def warnings(self) -> Sequence[str]:
        return ()

    def known(self) -> Sequence[tuple[str, int]]:
        return tuple(self._known)

    def forget(self, job_id: str, attempt: int) -> None:
        run = self.runs.get(job_id)
        if run is None or run.attempt != attempt or not run.devices:
            self._known.pop((job_id, attempt), None)

    def close(self) -> None:
        """Nothing to release."""

    def give_role(self, job_id: str, *, fills: bool) -> None:
        """From now on the job, which shares its devices, takes turns or only fills the gaps."""
        run = self.runs[job_id]
        if run.fills != fills:
            self._count(run)
            run.fills = fills
            self._unrated.extend(one for one in (run, run.partner) if one)

    def next_s(self) -> float:
        """When something happens by itself, if there are no orders until then."""
        if self._unrated:
            self._rate_changed()
        heap = self._predictions
        while heap and heap[0][3] != heap[0][4].version:
            heapq.heappop(heap)
        return heap[0][0] if heap else _NEVER

    def _happen(self) -> None:
        time_s, kind, _, _, run = heapq.heappop(self._predictions)
        now_s, self.now_s = self.now_s, time_s
        if kind == _FINISH:
            self._end(run.id, run.attempt, Fate.COMPLETED)
            run.remaining_steps = 0.0
        elif kind == _STAGE:
            self._count(run)
            run.remaining_steps = run.stage_left_steps
            run.stage += 1
            self.restaged.append(run)
            self._unrated.extend(one for one in (run, run.partner) if one)
        elif kind == _MEASURED:
            run.tried.add(len(run.devices))
            self.measured.append(run)
        else:
            self._count(run)
            for one in (run, run.partner):
                if one:
                    self._rate(one)
        self._rate_changed()
        self.now_s = now_s

    def _end(self, job_id: str, attempt: int, fate: Fate) -> None:
        run = self.runs.get(job_id)
        if run is None or run.attempt != attempt or not run.devices:
            return
        self._count(run)
        partner = run.partner
        if partner is None:
            self.num_busy -= len(run.devices)
            del self._tenants[run.devices]
        else:
            partner.partner, partner.fills = None, False
            self._tenants[run.devices] = partner
            self._unrated.append(partner)
        run.devices, run.shape, run.partner, run.fills = (), (), None, False
        run.steps_per_s = 0.0
        run.version += 1
        self._answers.append(WorkersExited(self.now_s, job_id, attempt, fate))

    def _count(self, run: JobRun) -> None:
        """Count progress so far; a change for one job of a pair is a change for both."""
        advance(run, self.now_s)
        if run.partner:
            advance(run.partner, self.now_s)

    def _rate_changed(self) -> None:
        """Set speeds once after all changes at one time."""
        for run in dict.fromkeys(self._unrated):
            if run.devices:
                self._rate(run)
        self._unrated.clear()

    def _rate(self, run: JobRun) -> None:
        rate(run, self.now_s, self._options.handover_s)
        end_s = stage_end_s(run)
        if end_s < _NEVER:
            kind = _STAGE if run.stage_left_steps else _FINISH
            heapq.heappush(self._predictions, (end_s, kind, run.index, run.version, run))
        if run.partner and self.now_s < run.resume_s:
            heapq.heappush(self._predictions, (run.resume_s, _RESUME, run.index, run.version, run))
        if self._options.learns_speeds and run.steps_per_s and len(run.devices) not in run.tried:
            believed_s = run.resume_s + self._measured_after_steps(run) / run.steps_per_s
            heapq.heappush(self._predictions, (max(believed_s, self.now_s), _MEASURED, run.index, run.version, run))

    def _measured_after_steps(self, run: JobRun) -> int:
        """The steps in the first reports of an attempt, each at least one step and some time after the one before."""
        options = self._options
        return options.measured_after_reports * max(1, math.ceil(options.report_every_s * run.steps_per_s))
