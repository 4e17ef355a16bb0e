"""All studies of the elastic layer in one run: replays, claims, gap, decision speed, long log, fits."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks.elastic.claims import Claim, at_least, at_most, replay_claims
from benchmarks.elastic.decision_speed import decision_times, replay_speeds
from benchmarks.elastic.equal_knowledge import ADAPTED, PUBLISHED, knowledge_rows, load_rows
from benchmarks.elastic.first_starts import rigid_row, start_row
from benchmarks.elastic.fit_study import fit_rows
from benchmarks.elastic.optimality_gap import optimality_gaps
from benchmarks.elastic.published import SAME_POLICY, means_of, published_times
from benchmarks.elastic.virtual_cluster import virtual_cluster
from weft.core.cluster import Cluster
from weft.elastic import POLICIES
from weft.errors import InputError
from weft.sim.believed_lengths import Lengths
from weft.sim.experiment import ReplayOutcome, Scenario, run_scenarios
from weft.sim.readers import read_workload
from weft.sim.readers.application_profiles import ApplicationFolder
from weft.sim.replay_options import SimulationOptions
from weft.sim.synthetic import OFFERED_LOAD, PREFIX, JobKind, measured_kinds, own_kinds, synthetic_workload
from weft.sim.workload import Workload

Progress = Callable[[str, int, int], None]

SCENARIO = Scenario(num_gpus=64, gpus_per_node=4)
LOG_SCENARIO = Scenario(num_gpus=1024, gpus_per_node=8)
DEFAULT_POLICY = next(iter(POLICIES))
NUM_INSTANCES = 2000
QUICK_INSTANCES = 1000
QUICK_LOG_JOBS = 10_000
SIDE_TABLES = (
    "equal_knowledge",
    "loads",
    "first_starts",
    "doubling_over_exact",
    "decision_speed",
    "replay_speed",
    "long_log",
    "hardships",
    "fit_quality",
    "parts",  # how long each study took
)
LOADS = (0.25, 0.5, 1.0, 2.0)
# The knobs of the full run: how the default policy does under worse conditions than assumed.
HARDSHIPS: dict[str, dict[str, Any]] = {
    "predictions 20 % off": {"prediction_error": 0.2},
    "predictions 50 % off": {"prediction_error": 0.5},
    "speeds found by exploration": {"explore": True},
    "restart 120 s": {"restart_s": 120.0},
    "a node fails every 24 h": {"node_mtbf_s": 24 * 3600.0},
}


@dataclass
class Comparison:
    """What was measured, filled study by study."""

    outcomes: list[tuple[ReplayOutcome, bool]] = field(default_factory=list)
    """With and without crossover (the flag)."""
    published: dict[str, dict[str, float]] = field(default_factory=dict)
    claims: list[Claim] = field(default_factory=list)
    tables: dict[str, list[dict[str, Any]]] = field(default_factory=lambda: {title: [] for title in SIDE_TABLES})
    """The small tables beside the simulations."""

    @contextmanager
    def timed(self, part: str) -> Iterator[None]:
        began_s = _core_s()
        yield
        self.tables["parts"].append({"part": part, "core_s": round(_core_s() - began_s, 1)})

    def rows(self) -> list[dict[str, Any]]:
        """The rows of ``weft sim`` with the workload's name and, where there is one, the published number."""
        rows = []
        for outcome, crossover in self.outcomes:
            workload, row = outcome.result.workload, outcome.row()
            published_s = None
            for name, same in SAME_POLICY.items():
                if same == row["policy"] and not crossover:
                    published_s = self.published.get(name, {}).get(workload)
            rows.append(
                {
                    "workload": workload,
                    **row,
                    "crossover": crossover,
                    "published_mean_jct_s": published_s,
                    "over_published": published_s and round(row["mean_jct_s"] / published_s, 4),
                }
            )
        return rows

    def document(self) -> dict[str, Any]:
        return {
            "rows": self.rows(),
            "claims": [claim.row() for claim in self.claims],
            "published_mean_jct_s": self.published,
            **{title: rows for title, rows in self.tables.items() if rows},
        }

    def replace_claim(self, claim: Claim) -> None:
        """Add a claim that later studies extend; the last value counts."""
        self.claims = [one for one in self.claims if one.text != claim.text] + [claim]

    def means(self, *, crossover: bool) -> dict[str, dict[str, float]]:
        """Policy -> workload -> mean completion time."""
        means: dict[str, dict[str, float]] = {}
        for outcome, shared in self.outcomes:
            if shared == crossover:
                result = outcome.result
                means.setdefault(result.policy, {})[result.workload] = result.mean_jct_s
        return means


def _core_s() -> float:
    """CPU time of this process and of those it has started and waited for."""
    return sum(os.times()[:4])


def find_data(named: Path | None) -> Path | None:
    """The folder of public traces: as named, else WEFT_DATA, else ``../shared/data`` of the repository."""
    if named is None and os.environ.get("WEFT_DATA"):
        named = Path(os.environ["WEFT_DATA"])
    if named is not None:
        if not (named / "pollux" / "workloads").is_dir():
            raise InputError("expected a folder with pollux/workloads inside", file=str(named))
        return named
    repository = Path(__file__).resolve().parents[2]
    for start in (Path.cwd(), repository):
        folder = start.parent / "shared" / "data"
        if (folder / "pollux" / "workloads").is_dir():
            return folder
    return None


def compare(data: Path | None, *, quick: bool, progress: Progress) -> Comparison:
    """Run every study; without ``data`` on synthetic workloads, and without what needs the data."""
    done = Comparison()
    workloads = list(_workloads(data))
    kinds = own_kinds() if data is None else measured_kinds(ApplicationFolder(data / "pollux" / "profiles"))
    with done.timed("simulations"):
        _replay(done, workloads, progress)
    if data is not None:
        times = published_times(data / "pollux" / "published")
        done.published = means_of(times)
        crossover = done.means(crossover=True)[DEFAULT_POLICY]
        done.claims += replay_claims(done.means(crossover=False), done.published, crossover)
        with done.timed("equal knowledge"):
            adapted = list(_workloads(data, adapt_batch=True))
            known = done.tables["equal_knowledge"] = knowledge_rows(
                workloads, adapted, SCENARIO.cluster(), times, progress
            )
        done.claims += _knowledge_claims(known)
    with done.timed("first starts"):
        _first_starts(done, workloads)
    if not quick:
        with done.timed("loads"):
            _loads(done, workloads, SCENARIO.cluster())
    with done.timed("gap and decision speed"):
        _measure(done, kinds, quick=quick, progress=progress)
    with done.timed("replay speed"):
        _replay_speed(done, workloads)
    if not quick:
        with done.timed("hardships"):
            done.tables["hardships"] = _hardships(workloads, progress)
    if data is not None:
        with done.timed("fits"):
            done.tables["fit_quality"] = fit_rows(data)
        with done.timed("long log"):
            log = _long_log(done, data, quick=quick, progress=progress)
        if log and not quick:
            with done.timed("loads, virtual cluster"):
                workload, cluster = virtual_cluster(log)
                _loads(done, [workload], cluster)
    return done


def _loads(done: Comparison, workloads: Sequence[Workload], cluster: Cluster) -> None:
    for lengths in (Lengths.KNOWN, Lengths.UNKNOWN):
        done.tables["loads"] += load_rows(workloads, cluster, list(POLICIES), LOADS, lengths)
        _claim_loads(done, lengths)


def _claim_loads(done: Comparison, lengths: Lengths) -> None:
    closest = min(row["over_default"] for row in done.tables["loads"] if row["lengths"] == lengths.value)
    done.replace_claim(
        at_least(f"best other policy / balanced, any workload and load, lengths {lengths.value}", closest, 0.98)
    )


def _workloads(data: Path | None, *, adapt_batch: bool = False) -> Iterator[Workload]:
    num_gpus = SCENARIO.num_gpus
    if data is not None:
        for path in sorted((data / "pollux" / "workloads").glob("*.csv")):
            yield read_workload(path, num_devices=num_gpus, adapt_batch=adapt_batch)
        return
    for level in OFFERED_LOAD:
        yield synthetic_workload(f"{PREFIX}{level}", num_devices=num_gpus)


def _replay(done: Comparison, workloads: Sequence[Workload], progress: Progress) -> None:
    for workload in workloads:
        for crossover in (False, True):
            policies = [DEFAULT_POLICY] if crossover else list(POLICIES)
            options = SimulationOptions(crossover=crossover)
            for outcome in run_scenarios(workload, [SCENARIO], policies, options, progress=progress):
                done.outcomes.append((outcome, crossover))


def _knowledge_claims(rows: Sequence[dict[str, Any]]) -> list[Claim]:
    ours = {row["knows"]: row for row in rows if row["conditions"] == PUBLISHED and row["scheduler"] == DEFAULT_POLICY}
    adapted = {row["knows"]: row for row in rows if row["conditions"] == ADAPTED}
    return [
        at_most("balanced, lengths known / published Pollux, mean of ratios", ours["lengths"]["over_pollux"], 0.96),
        at_most("balanced, no lengths / published Pollux, mean of ratios", ours["no lengths"]["over_pollux"], 1.0),
        at_most("balanced, no lengths / published Tiresias, mean of ratios", ours["no lengths"]["over_tiresias"], 0.75),
        at_most("balanced, batch ranges / published Pollux, mean of ratios", adapted["lengths"]["over_pollux"], 0.85),
    ]


def _first_starts(done: Comparison, workloads: Sequence[Workload]) -> None:
    """From the replays of the default policy that were made already."""
    results = {
        o.result.workload: o.result for o, shared in done.outcomes if not shared and o.result.policy == DEFAULT_POLICY
    }
    cluster = SCENARIO.cluster()
    for workload in workloads:
        result = results[workload.name]
        row = start_row(workload, cluster, result) | rigid_row(workload, cluster, result, SimulationOptions())
        done.tables["first_starts"].append(row)
    _claim_short_waits(done)
    rigid = max(row["worst_rigid_wait"] for row in done.tables["first_starts"])
    done.claims.append(at_most("rigid jobs' wait / (1.1 x that under FIFO with backfill), worst job", rigid, 1.0))


def _claim_short_waits(done: Comparison) -> None:
    worst = max(row["worst_wait"] for row in done.tables["first_starts"])
    done.replace_claim(
        at_most("wait of a job shorter than a minute / (10 x its length + 5 min), worst job", worst, 1.0)
    )


def _measure(done: Comparison, kinds: Sequence[JobKind], *, quick: bool, progress: Progress) -> None:
    num_instances = QUICK_INSTANCES if quick else NUM_INSTANCES
    study = optimality_gaps(
        kinds,
        num_instances=num_instances,
        progress=lambda n, all_: progress("doubling against exact", n, all_),
    )
    done.tables["doubling_over_exact"] = [study.row()]
    job_counts = (500,) if quick else (125, 250, 500, 1000)
    decisions = done.tables["decision_speed"] = decision_times(kinds, list(POLICIES), job_counts=job_counts)
    slowest = max(row["decision_ms"] for row in decisions if row["jobs"] == 500)
    done.claims.append(at_most("ms for a decision, 500 jobs on 1,024 GPUs, slowest policy", slowest, 100.0))


def _replay_speed(done: Comparison, workloads: Sequence[Workload]) -> None:
    speeds = done.tables["replay_speed"] = replay_speeds(workloads, list(POLICIES), SCENARIO.cluster())
    where = {
        "slowest policy and workload": [row for row in speeds if row["gpus"] == SCENARIO.num_gpus],
        "with pairs": [row for row in speeds if row["paired_jobs"]],
    }
    for words, rows in where.items():
        if rows:
            slowest = min(row["slowest_jobs_per_s"] for row in rows)
            done.claims.append(at_least(f"jobs replayed per second of one core, {words}", slowest, 1000.0))


def _long_log(done: Comparison, data: Path, *, quick: bool, progress: Progress) -> Workload | None:
    path = data / "pollux" / "philly.csv"
    if not path.exists():
        return None
    began, core_began = time.perf_counter(), time.process_time()
    workload = read_workload(path, num_devices=LOG_SCENARIO.num_gpus)
    if quick:
        workload = replace(workload, jobs=workload.jobs[:QUICK_LOG_JOBS])
    options = SimulationOptions(record=False)
    (outcome,) = run_scenarios(workload, [LOG_SCENARIO], [DEFAULT_POLICY], options, progress=progress)
    took_s, core_s = time.perf_counter() - began, time.process_time() - core_began
    row = outcome.row()
    done.tables["long_log"] = [
        {
            "workload": workload.name,
            "jobs": len(workload.jobs),
            "gpus": LOG_SCENARIO.num_gpus,
            "end_to_end_s": round(took_s, 1),
            "core_s": round(core_s, 1),
            **{name: row[name] for name in ("policy", "mean_jct_s", "lower_bound_s", "restarts_per_job")},
        }
    ]
    done.tables["first_starts"].append(start_row(workload, LOG_SCENARIO.cluster(), outcome.result))
    _claim_short_waits(done)
    if not quick:
        done.claims.append(at_most("seconds of one core for the Philly log, read to result", core_s, 180.0))
        # All policies on the whole log would take too long, but none can be better than the bound.
        done.tables["loads"].append(
            {
                "lengths": Lengths.KNOWN.value,
                "load": 1.0,
                "closest_policy": "any (lower bound)",
                "workload": workload.name,
                "over_default": round(outcome.lower_bound_s / outcome.result.mean_jct_s, 3),
            }
        )
        _claim_loads(done, Lengths.KNOWN)
    return workload


def _hardships(workloads: Sequence[Workload], progress: Progress) -> list[dict[str, Any]]:
    rows = []
    for label, knobs in {"as assumed": {}, **HARDSHIPS}.items():
        means = [
            outcome.result.mean_jct_s
            for workload in workloads
            for outcome in run_scenarios(
                workload, [SCENARIO], [DEFAULT_POLICY], SimulationOptions(**knobs), progress=progress
            )
        ]
        rows.append({"hardship": label, "policy": DEFAULT_POLICY, "mean_jct_s": round(sum(means) / len(means), 1)})
    return rows
