"""Runs a workload under several policies, cluster sizes and loads, each with its lower bound."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from weft.core.cluster import Cluster
from weft.elastic import policy_named
from weft.errors import UsageError
from weft.sim.bounds import lower_bound
from weft.sim.device_kinds import KindGroup, cluster_of_kinds
from weft.sim.readers.assembly import MAX_TIME_S, fit_requests
from weft.sim.replay import simulate
from weft.sim.replay_options import SimulationOptions
from weft.sim.result import SimulationResult
from weft.sim.workload import Workload

Progress = Callable[[str, int, int], None]
"""Called with what is being replayed, the number of finished jobs, and the total."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """A cluster and an arrival rate; load 2 means the same jobs in half the time."""

    num_gpus: int = 64
    gpus_per_node: int = 4
    load: float = 1.0
    groups: tuple[KindGroup, ...] = ()
    """Devices of several kinds, ``num_gpus`` in all; empty: all are of one kind."""

    def cluster(self) -> Cluster:
        """Full nodes, and a smaller one for the rest.

        >>> Scenario(num_gpus=10, gpus_per_node=4).cluster().devices_by_node
        (4, 4, 2)
        """
        if self.groups:
            return cluster_of_kinds(self.groups)
        full, rest = divmod(self.num_gpus, self.gpus_per_node)
        return Cluster((self.gpus_per_node,) * full + ((rest,) if rest else ()))


@dataclass(frozen=True, slots=True)
class ReplayOutcome:
    """One policy in one scenario."""

    scenario: Scenario
    result: SimulationResult
    lower_bound_s: float
    lower_bound_by: str
    """Which of the bounds is the largest."""

    def row(self) -> dict[str, Any]:
        """A row of ``weft sim --json``."""
        result = self.result
        return {
            "policy": result.policy,
            "mean_jct_s": round(result.mean_jct_s, 3),
            "p50_jct_s": round(result.percentile_jct_s(50), 3),
            "p99_jct_s": round(result.percentile_jct_s(99), 3),
            "makespan_s": round(result.makespan_s, 3),
            "utilization": round(result.utilization, 4),
            "restarts_per_job": round(result.restarts_per_job, 3),
            "lower_bound_s": round(self.lower_bound_s, 3),
            "lower_bound_by": self.lower_bound_by,
            "decision_ms": round(result.decision_ms, 4),
            "jobs_per_s": round(result.jobs_per_s, 1),
        }


def run_scenarios(
    workload: Workload,
    scenarios: Sequence[Scenario],
    policies: Sequence[str],
    options: SimulationOptions,
    *,
    progress: Progress | None = None,
) -> Iterator[ReplayOutcome]:
    """Outcomes, scenario by scenario and policy by policy, each as soon as it is ready."""
    for name in policies:
        policy_named(name)  # reject a typo before the first replay
    for scenario in scenarios:
        fitted, _ = fit_requests(at_load(workload, scenario.load), scenario.num_gpus)
        cluster = scenario.cluster()
        bound = lower_bound(fitted, cluster, options)
        for name in policies:
            report = _labelled(progress, f"{name} on {scenario.num_gpus} GPUs")
            result = simulate(fitted, cluster, policy_named(name), options, report)
            yield ReplayOutcome(scenario, result, bound.mean_jct_s, bound.binding)


def at_load(workload: Workload, load: float) -> Workload:
    """The same jobs, arriving ``load`` times as fast."""
    if load == 1.0:
        return workload
    if not 0 < load < float("inf"):
        raise UsageError(f"a load of {load}: expected a number above 0; 1 leaves the workload unchanged")
    last_s = max(job.spec.submitted_s for job in workload.jobs) / load
    if last_s > MAX_TIME_S:
        raise UsageError(
            f"at a load of {load:g}, the last job would be submitted after {last_s:g} s: "
            f"expected at most {MAX_TIME_S:g} (32 years)"
        )
    jobs = tuple(replace(job, spec=replace(job.spec, submitted_s=job.spec.submitted_s / load)) for job in workload.jobs)
    return replace(workload, jobs=jobs)


def _labelled(progress: Progress | None, label: str) -> Callable[[int, int], None] | None:
    if progress is None:
        return None
    return lambda done, total: progress(label, done, total)
