"""Schedulers compared under equal knowledge: those that know how long jobs are, and those that do not.

Two sets of conditions, never mixed in one comparison: those of the published numbers (every start costs 30 s, decisions
every 60 s), and weft's own, with the restart that it was measured to need on a warm pool.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from typing import Any

from benchmarks.elastic.published import JobTimes
from weft.core.cluster import Cluster
from weft.elastic import policy_named
from weft.sim.believed_lengths import Lengths
from weft.sim.bounds import LowerBound, lower_bound
from weft.sim.experiment import at_load
from weft.sim.replay import simulate
from weft.sim.replay_options import SimulationOptions
from weft.sim.result import percentile
from weft.sim.workload import Workload

OWN_RESTART_S = 0.3
"""A warm restart as measured by ``python -m benchmarks.restart``."""
PUBLISHED = "published: starts 30 s, decisions 60 s"
ADAPTED = "published, and batch sizes may change as with Pollux"
CONDITIONS: dict[str, dict[str, Any]] = {
    PUBLISHED: {"restart_s": 30.0, "decision_interval_s": 60.0},
    **{
        f"weft's own: starts {OWN_RESTART_S} s, decisions {every_s} s": {
            "restart_s": OWN_RESTART_S,
            "decision_interval_s": float(every_s),
        }
        for every_s in (60, 30, 10)
    },
}
# What each policy knows; only ``balanced`` is also replayed under the other conditions.
OURS = (
    ("lengths", "optimus", Lengths.KNOWN),
    ("lengths", "srtf", Lengths.KNOWN),
    ("lengths", "balanced", Lengths.KNOWN),
    ("no lengths", "tiresias", Lengths.UNKNOWN),
    ("no lengths", "balanced", Lengths.UNKNOWN),
    ("lengths of finished jobs", "balanced", Lengths.HISTORY),
)
THEIRS = (
    ("lengths", "optimus", "Optimus+Oracle (published)"),
    ("no lengths", "tiresias", "Tiresias (published)"),
    ("no lengths", "pollux", "Pollux (published)"),
)
FIGURES = ("mean_jct_s", "p50_jct_s", "p99_jct_s", "makespan_s")


@dataclass(frozen=True, slots=True)
class _Figures:
    """The four figures of one scheduler on one workload."""

    mean_jct_s: float
    p50_jct_s: float
    p99_jct_s: float
    makespan_s: float


def knowledge_rows(
    workloads: Sequence[Workload],
    adapted: Sequence[Workload],
    cluster: Cluster,
    published: Mapping[str, Mapping[str, JobTimes]],
    progress: Callable[[str, int, int], None],
) -> list[dict[str, Any]]:
    """One row per conditions, knowledge, and scheduler; every figure is a mean over the workloads.

    ``adapted``: the same workloads with batch sizes that may change.
    """
    peers = {name: [_of_published(w, published[name][w.name]) for w in workloads] for _, name, _ in THEIRS}
    rows = []
    all_conditions = {**CONDITIONS, ADAPTED: CONDITIONS[PUBLISHED]}
    for number, (label, conditions) in enumerate(all_conditions.items()):
        options = SimulationOptions(record=False, **conditions)
        workloads = adapted if label == ADAPTED else workloads
        bounds = [lower_bound(workload, cluster, options) for workload in workloads]
        found: list[tuple[str, str, list[_Figures]]] = []
        if label == PUBLISHED:
            found += [(knows, title, peers[name]) for knows, name, title in THEIRS]
        for knows, policy, lengths in OURS:
            if label != PUBLISHED and policy != "balanced":
                continue
            progress(f"{policy}, {label}", number, len(all_conditions))
            given = SimulationOptions(record=False, lengths=lengths, **conditions)
            found.append((knows, policy, [_of_replay(workload, cluster, policy, given) for workload in workloads]))
        rows += [_row(label, knows, title, figures, bounds, peers) for knows, title, figures in found]
    return rows


def _row(
    conditions: str,
    knows: str,
    scheduler: str,
    figures: Sequence[_Figures],
    bounds: Sequence[LowerBound],
    peers: Mapping[str, Sequence[_Figures]],
) -> dict[str, Any]:
    means = {name: sum(getattr(one, name) for one in figures) / len(figures) for name in FIGURES}
    over = {
        f"over_{name}": round(
            sum(one.mean_jct_s / peer.mean_jct_s for one, peer in zip(figures, theirs, strict=True)) / len(figures), 3
        )
        for name, theirs in peers.items()
    }
    below = sum(one.mean_jct_s < bound.mean_jct_s for one, bound in zip(figures, bounds, strict=True))
    return {
        "conditions": conditions,
        "knows": knows,
        "scheduler": scheduler,
        **{name: round(value, 1) for name, value in means.items()},
        "lower_bound_s": round(sum(bound.mean_jct_s for bound in bounds) / len(bounds), 1),
        "lower_bound_by": ", ".join(sorted({bound.binding for bound in bounds})),
        "below_bound": below,
        **over,
    }


def _of_published(workload: Workload, times_s: JobTimes) -> _Figures:
    first_s = workload.jobs[0].spec.submitted_s
    last_s = max(job.spec.submitted_s + times_s[job.spec.id] for job in workload.jobs)
    ordered = sorted(times_s.values())
    mean_s = sum(ordered) / len(ordered)
    return _Figures(mean_s, percentile(ordered, 50), percentile(ordered, 99), last_s - first_s)


def _of_replay(workload: Workload, cluster: Cluster, policy: str, options: SimulationOptions) -> _Figures:
    result = simulate(workload, cluster, policy_named(policy), options)
    return _Figures(result.mean_jct_s, result.percentile_jct_s(50), result.percentile_jct_s(99), result.makespan_s)


def load_rows(
    workloads: Sequence[Workload],
    cluster: Cluster,
    policies: Sequence[str],
    loads: Sequence[float],
    lengths: Lengths = Lengths.KNOWN,
) -> list[dict[str, Any]]:
    """By load: the best other policy over the default, on the workload where it does best against it."""
    tried = [(load, workload, policy) for load in loads for workload in workloads for policy in policies]
    # Nothing is timed here, so every core may replay.
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as cores:
        found = list(cores.map(partial(_mean_jct_s, cluster, lengths), *zip(*tried, strict=True)))
    means = {(load, workload.name, policy): s for (load, workload, policy), s in zip(tried, found, strict=True)}
    default, *others = policies
    rows = []
    for load in loads:
        ratios = [
            (means[load, workload.name, name] / means[load, workload.name, default], name, workload.name)
            for workload in workloads
            for name in others
        ]
        over_default, name, where = min(ratios)
        rows.append(
            {
                "lengths": lengths.value,
                "load": load,
                "closest_policy": name,
                "workload": where,
                "over_default": round(over_default, 3),
            }
        )
    return rows


def _mean_jct_s(cluster: Cluster, lengths: Lengths, load: float, workload: Workload, policy: str) -> float:
    options = SimulationOptions(record=False, lengths=lengths)
    return simulate(at_load(workload, load), cluster, policy_named(policy), options).mean_jct_s
