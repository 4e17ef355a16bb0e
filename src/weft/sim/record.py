"""Collects what happens during a replay, and makes the result of it."""

from __future__ import annotations

from collections.abc import Sequence

from weft.core.cluster import Cluster
from weft.sim.lifecycle import JobRun
from weft.sim.result import AllocationSpan, Explanation, JobResult, SimEvent, SimulationResult


class Recorder:
    """Write-only until :meth:`result`."""

    def __init__(self, *, enabled: bool) -> None:
        self._enabled = enabled
        self._events: list[SimEvent] = []
        self._spans: list[AllocationSpan] = []
        self._began: dict[str, float] = {}
        self._explanations: list[Explanation] = []
        self._decisions: list[float] = []
        self._busy_device_s = 0.0
        self._num_busy = 0
        self._busy_since_s = 0.0

    def event(self, now_s: float, kind: str, subject: str, detail: str = "") -> None:
        if self._enabled:
            self._events.append(SimEvent(now_s, kind, subject, detail))

    def span_began(self, run: JobRun, now_s: float) -> None:
        self._began[run.name] = now_s

    def span_ended(self, run: JobRun, now_s: float) -> None:
        start_s = self._began.pop(run.name)
        if self._enabled and now_s > start_s:
            partner = run.partner.name if run.partner else None
            self._spans.append(AllocationSpan(run.name, start_s, now_s, run.devices, partner))

    def busy(self, now_s: float, num_busy: int) -> None:
        """From now on so many devices are in use."""
        self._busy_device_s += self._num_busy * (now_s - self._busy_since_s)
        self._num_busy, self._busy_since_s = num_busy, now_s

    def decision(self, took_s: float) -> None:
        self._decisions.append(took_s)

    def explain(self, now_s: float, job: str, workers: int, sentence: str) -> None:
        self._explanations.append(Explanation(now_s, job, workers, sentence))

    def result(
        self, workload: str, policy: str, cluster: Cluster, runs: Sequence[JobRun], wall_s: float
    ) -> SimulationResult:
        jobs = tuple(
            JobResult(
                run.name,
                run.job.spec.submitted_s,
                run.started_s,
                run.finished_s,
                run.num_restarts,
                run.billed_device_s,
            )
            for run in runs
        )
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
