"""Collects what happens during a replay, and makes the result of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from weft.control.state import Job, State
from weft.core.cluster import Cluster
from weft.sim.job_run import JobRun
from weft.sim.result import AllocationSpan, Explanation, JobResult, SimEvent, SimulationResult


class Recorder:
    """Write-only until :meth:`result`."""

    def __init__(self, *, enabled: bool) -> None:
        self.enabled = enabled
        self._events: list[SimEvent] = []
        self._spans: list[AllocationSpan] = []
        self._began: dict[str, float] = {}
        self._explanations: list[Explanation] = []
        self._decisions: list[float] = []
        self._busy_device_s = 0.0
        self._num_busy = 0
        self._busy_since_s = 0.0

    def event(self, now_s: float, kind: str, subject: str, detail: str = "") -> None:
        if self.enabled:
            self._events.append(SimEvent(now_s, kind, subject, detail))

    def reassigned(self, now_s: float, changes: Iterable[tuple[Job, Job]]) -> None:
        """Jobs before and after a decision that changed what they hold or with whom."""
        if not self.enabled:
            return
        for before, after in changes:
            name = after.id
            if before.devices:
                self._span_ended(before, now_s)
            if not after.devices:
                self.event(now_s, "paused", name)
                continue
            had = len(before.devices)
            if before.devices != after.devices:
                kind = "started" if not had else "moved" if had == len(after.devices) else "resized"
                self.event(now_s, kind, name, _where(after))
            elif (before.partner, before.fills) != (after.partner, after.fills):
                self.event(now_s, "shares", name, f"with={after.partner or 'nobody'}")
            self._began[name] = now_s

    def left(self, now_s: float, job: Job, kind: str, detail: str = "") -> None:
        """The job, as it was before, has lost its devices."""
        if self.enabled:
            self._span_ended(job, now_s)
            self.event(now_s, kind, job.id, detail)

    def left_alone(self, now_s: float, job: Job) -> None:
        """The partner of the job, as it was before, has left."""
        if self.enabled:
            self._span_ended(job, now_s)
            self._began[job.id] = now_s

    def busy(self, now_s: float, num_busy: int) -> None:
        """From now on so many devices are in use."""
        self._busy_device_s += self._num_busy * (now_s - self._busy_since_s)
        self._num_busy, self._busy_since_s = num_busy, now_s

    def decision(self, took_s: float) -> None:
        self._decisions.append(took_s)

    def explain(self, now_s: float, job: str, workers: int, sentence: str) -> None:
        self._explanations.append(Explanation(now_s, job, workers, sentence))

    def result(
        self, workload: str, policy: str, cluster: Cluster, state: State, runs: Mapping[str, JobRun], wall_s: float
    ) -> SimulationResult:
        jobs = tuple(_job_result(job, runs[job.id]) for job in sorted(state.jobs.finished, key=lambda job: job.number))
        return SimulationResult(
            workload,
            policy,
            cluster.num_devices,
            jobs,
            tuple(self._spans),
            tuple(self._events),
            tuple(self._explanations),
            self._busy_device_s,
            tuple(self._decisions),
            wall_s,
        )

    def _span_ended(self, job: Job, now_s: float) -> None:
        start_s = self._began.pop(job.id)
        if now_s > start_s:
            self._spans.append(AllocationSpan(job.id, start_s, now_s, job.devices, job.partner))


def _job_result(job: Job, run: JobRun) -> JobResult:
    started_s, finished_s = job.started_s, job.finished_s
    if started_s is None or finished_s is None:
        raise RuntimeError(f"job {job.id} ended as {job.state.value} without having run: expected every job to run")
    return JobResult(job.id, job.spec.submitted_s, started_s, finished_s, job.num_restarts, run.billed_device_s)


def _where(job: Job) -> str:
    text = f"workers={len(job.devices)} devices={','.join(map(str, job.devices))}"
    return f"{text} with={job.partner}" if job.partner else text
