"""``weft sim``: simulate a queue of jobs under several policies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from weft.cli.render import Column, duration, note, number, percent, print_json, print_table, print_text, progress
from weft.cli.verb import Json
from weft.core.cluster import MAX_DEVICES
from weft.core.command_line import Argument, Option
from weft.core.nearest_name import nearest_name
from weft.core.plural import plural
from weft.errors import InputError, UsageError

if TYPE_CHECKING:
    from weft.sim.device_kinds import KindGroup
    from weft.sim.experiment import ReplayOutcome, Scenario
    from weft.sim.replay_options import SimulationOptions
    from weft.sim.workload import Workload

# In larger workloads, events and allocations are recorded only if --plot or --trace needs them.
MAX_RECORDED_JOBS = 20_000
_DEFAULT_GPUS = "64"
_DEFAULT_GPUS_PER_NODE = 4
_DEFAULT_REPAIR_S = 1800.0
_DEFAULT_HANDOVER_S = 0.001

COLUMNS = (
    Column("policy", "policy"),
    Column("mean_jct_s", "mean time", duration, min),
    Column("p50_jct_s", "median", duration, min),
    Column("p99_jct_s", "p99", duration, min),
    Column("lower_bound_s", "lower bound", duration),
    Column("makespan_s", "makespan", duration, min, extra=True),
    Column("utilization", "GPUs used", percent),
    Column("restarts_per_job", "restarts/job", number(2)),
    Column("decision_ms", "ms/decision", number(2), extra=True),
    Column("jobs_per_s", "jobs/s", number(0), extra=True),
)
SWEEP_COLUMNS = (Column("gpus", "GPUs", number(0)), Column("load", "load", number(2)))


def sim(
    workload: Annotated[
        str, Argument("WORKLOAD", "a CSV or YAML file of jobs, or synthetic:extreme|moderate|none[:JOBS]")
    ],
    profiles: Annotated[
        Path | None, Option("folder of application profiles", "../profiles next to the workload", metavar="DIR")
    ] = None,
    gpus: Annotated[
        str | None,
        Option("GPUs in the cluster; a list such as 32,64,128 makes a sweep", _DEFAULT_GPUS, metavar="N[,N...]"),
    ] = None,
    gpus_per_node: Annotated[int | None, Option("GPUs per node", str(_DEFAULT_GPUS_PER_NODE), min=1)] = None,
    cluster: Annotated[
        str,
        Option(
            "devices of several kinds instead of --gpus: N of KIND in nodes of M, such as 16xT4:4,8xA100:8",
            "one kind",
            metavar="NxKIND:M[,...]",
        ),
    ] = "",
    kind_speed: Annotated[
        str,
        Option(
            "with --cluster: how much faster a kind computes than in the workload or its profiles, such as A100=2.5",
            "profiles in DIR/KIND",
            metavar="KIND=X[,...]",
        ),
    ] = "",
    policy: Annotated[str, Option("policies to compare, such as balanced,fifo", "all", metavar="NAME[,NAME...]")] = "",
    restart_s: Annotated[float, Option("time a job loses when it starts or restarts", min=0)] = 30.0,
    seed: Annotated[int, Option("random seed of synthetic jobs, prediction errors, and node failures")] = 0,
    crossover: Annotated[bool, Option("let two jobs take turns on a device")] = False,
    adapt_batch: Annotated[
        bool, Option("let each job train with the batch size that makes the most progress, within its profile's range")
    ] = False,
    load: Annotated[str, Option("arrival rate multiplier; a list makes a sweep", metavar="X[,X...]")] = "1",
    plot: Annotated[
        Path | None, Option("plot completion times, GPUs, and jobs to FILE (.png, .svg, .pdf)", "none", metavar="FILE")
    ] = None,
    trace: Annotated[Path | None, Option("write a timeline for Perfetto to FILE", "none", metavar="FILE")] = None,
    explain: Annotated[str, Option("explain every decision about this job", "none", metavar="JOB")] = "",
    decision_s: Annotated[float, Option("time between decisions; 0 decides after every event", min=0)] = 60.0,
    prediction_error: Annotated[float, Option("relative error of the speeds and lengths the policy sees", min=0)] = 0.0,
    lengths: Annotated[
        str, Option("what the policy knows about lengths: known, declared, history, unknown", metavar="SOURCE")
    ] = "known",
    speeds: Annotated[
        str | None, Option("known, or explored: only at sizes a job has run with", "known", metavar="SOURCE")
    ] = None,
    explore: Annotated[bool, Option("the same as --speeds explored")] = False,
    node_mtbf_s: Annotated[float, Option("mean time between failures of a node; 0 means no failures", min=0)] = 0.0,
    node_repair_s: Annotated[
        float | None, Option("with --node-mtbf-s: how long a failed node stays down", f"{_DEFAULT_REPAIR_S:g}", min=0)
    ] = None,
    handover_s: Annotated[
        float | None, Option("with --crossover: cost of a handover between two jobs", f"{_DEFAULT_HANDOVER_S:g}", min=0)
    ] = None,
    as_json: Json = False,
) -> None:
    """Simulate WORKLOAD under each policy and print completion times next to a lower bound on their mean."""
    from weft.elastic import POLICIES, policy_named
    from weft.sim.believed_lengths import Lengths
    from weft.sim.experiment import Scenario, run_scenarios
    from weft.sim.replay_options import SimulationOptions

    policies = _list(policy) or list(POLICIES)
    for name in policies:
        policy_named(name)
    if handover_s is not None and not crossover:
        raise UsageError("--handover-s needs --crossover: without it, no two jobs share a device")
    if node_repair_s is not None and not node_mtbf_s:
        raise UsageError("--node-repair-s needs --node-mtbf-s: without it, no node fails")
    if explore and speeds is not None:
        raise UsageError("--explore is the same as --speeds explored: use only one of --explore and --speeds")
    per_node = gpus_per_node or _DEFAULT_GPUS_PER_NODE
    groups = _groups(cluster, kind_speed, gpus, gpus_per_node)
    counts = [sum(group.num_devices for group in groups)] if groups else _counts(gpus or _DEFAULT_GPUS, "--gpus")
    scenarios = [
        Scenario(num_gpus, per_node, one_load, groups) for one_load in _numbers(load, "--load") for num_gpus in counts
    ]
    _check_outputs(plot, trace, scenarios)
    jobs = _read(workload, profiles, seed, scenarios, kind_speed, adapt_batch=adapt_batch)
    if explain:
        _check_job(jobs, explain)
    options = SimulationOptions(
        decision_interval_s=decision_s,
        restart_s=restart_s,
        seed=seed,
        prediction_error=prediction_error,
        lengths=Lengths(_one_of("--lengths", lengths, [one.value for one in Lengths])),
        explore=explore or _one_of("--speeds", speeds or "known", ["known", "explored"]) == "explored",
        crossover=crossover,
        handover_s=_DEFAULT_HANDOVER_S if handover_s is None else handover_s,
        node_mtbf_s=node_mtbf_s,
        node_repair_s=_DEFAULT_REPAIR_S if node_repair_s is None else node_repair_s,
        explained_jobs=frozenset({explain} if explain else ()),
        record=bool(plot or trace) or len(jobs.jobs) <= MAX_RECORDED_JOBS,
    )
    with progress(jobs.name) as report:
        outcomes = list(run_scenarios(jobs, scenarios, policies, options, progress=report))
    _write_outputs(outcomes, plot, trace)
    _print(outcomes, jobs, options, explain, as_json=as_json)


def _groups(cluster: str, kind_speed: str, gpus: str | None, gpus_per_node: int | None) -> tuple[KindGroup, ...]:
    """The devices in --cluster; none without the option."""
    from weft.sim.device_kinds import kind_groups

    if not cluster:
        if kind_speed:
            raise UsageError("--kind-speed needs device kinds: name them with --cluster, such as 16xT4:4,8xA100:8")
        return ()
    if gpus is not None:
        raise UsageError("--cluster and --gpus both set the number of devices: use only one of them")
    if gpus_per_node is not None and all(":" in group for group in cluster.split(",")):
        raise UsageError("--gpus-per-node is for groups without :M, and every group in --cluster has one: use only :M")
    return kind_groups(cluster, gpus_per_node or _DEFAULT_GPUS_PER_NODE)


def _one_of(option: str, value: str, known: list[str]) -> str:
    if value not in known:
        raise UsageError(f"{option} {value}: expected one of {', '.join(known)}")
    return value


def _read(
    source: str, profiles: Path | None, seed: int, scenarios: list[Scenario], kind_speed: str, *, adapt_batch: bool
) -> Workload:
    from weft.sim.device_kinds import kind_factors, with_kinds
    from weft.sim.readers import read_workload
    from weft.sim.readers.assembly import fit_requests
    from weft.sim.readers.kind_profiles import KindFolder
    from weft.sim.synthetic import PREFIX, synthetic_workload

    largest = max(scenario.num_gpus for scenario in scenarios)
    cluster = scenarios[0].cluster()
    kinds = cluster.kind_names if cluster.kinds else ()
    factors = kind_factors(kind_speed, kinds)
    if source.startswith(PREFIX):
        if adapt_batch:
            raise UsageError("--adapt-batch: synthetic jobs have one batch size; give a workload in Pollux's format")
        folder = None if profiles is None else KindFolder(profiles, kinds)
        made = synthetic_workload(source, seed=seed, applications=folder, num_devices=largest)
        return with_kinds(made, cluster, factors)
    jobs = read_workload(Path(source), num_devices=largest, profiles=profiles, adapt_batch=adapt_batch, kinds=kinds)
    if cluster.kinds:
        asked = {job.spec.id: job.spec.requested_workers for job in jobs.jobs}
        jobs = with_kinds(jobs, cluster, factors)
        cut = [job.spec.id for job in jobs.jobs if job.spec.requested_workers < asked[job.spec.id]]
        if cut:
            note(f"jobs that request more devices than one kind has, reduced: {', '.join(cut)}")
    for num_gpus in sorted({scenario.num_gpus for scenario in scenarios}):
        _, cut = fit_requests(jobs, num_gpus)
        if cut:
            note(f"jobs that request more than {num_gpus} GPUs, reduced to {num_gpus}: {', '.join(cut)}")
    return jobs


def _check_outputs(plot: Path | None, trace: Path | None, scenarios: list[Scenario]) -> None:
    """Reject a file that cannot be written before the simulation, not after it."""
    for option, path in (("--plot", plot), ("--trace", trace)):
        if path is not None and not path.absolute().parent.is_dir():
            raise InputError(f"{option}: the folder does not exist: create it", file=str(path))
        if path is not None and path.is_dir():
            raise InputError(f"{option}: this is a folder, expected a file", file=str(path))
    if plot is not None and plot.suffix.lower() not in (".png", ".svg", ".pdf"):
        raise InputError("--plot: expected a file name ending in .png, .svg, or .pdf", file=str(plot))
    if trace is not None and len(scenarios) > 1:
        raise UsageError("--trace shows one cluster: pass a single value for --gpus and for --load")


def _check_job(jobs: Workload, name: str) -> None:
    names = [job.spec.id for job in jobs.jobs]
    if name not in names:
        near = nearest_name(name, names)
        hint = f"did you mean {near!r}?" if near else f"its first job is {names[0]!r}"
        raise UsageError(f"--explain {name}: there is no such job in workload {jobs.name}: {hint}")


def _write_outputs(outcomes: list[ReplayOutcome], plot: Path | None, trace: Path | None) -> None:
    if plot is not None:
        from weft.sim.plots import plot_replays, plot_sweep

        swept = len({outcome.scenario for outcome in outcomes}) > 1
        (plot_sweep if swept else plot_replays)(plot, outcomes)
        note(f"wrote {plot}")
    if trace is not None:
        from weft.core.chrome_trace import write_chrome_trace
        from weft.sim.result import timeline

        spans = [span for o in outcomes for span in timeline(o.result, o.scenario.cluster())]
        write_chrome_trace(trace, spans)
        note(f"wrote {trace}: open it in Perfetto or chrome://tracing")


def _print(
    outcomes: list[ReplayOutcome], jobs: Workload, options: SimulationOptions, explain: str, *, as_json: bool
) -> None:
    rows = _rows(outcomes)
    if as_json:
        document: dict[str, Any] = {"rows": rows}
        if explain:
            document["explanations"] = _explanations(outcomes)
        print_json(document)
        return
    shared = ", with crossover" if options.crossover else ""
    title = f"{jobs.name}: {plural(len(jobs.jobs), 'job')}, restart {options.restart_s:g} s{shared}"
    print_table(rows, _columns(rows), title=title)
    for line in _explanations(outcomes) if explain else ():
        print_text(f"{line['policy']:>9}  {duration(line['time_s']):>9}  {line['sentence']}", indent=22)


def _rows(outcomes: Sequence[ReplayOutcome]) -> list[dict[str, Any]]:
    """One row per policy; in a sweep, each row also has its cluster size and load."""
    swept = len({outcome.scenario for outcome in outcomes}) > 1
    rows = []
    for outcome in outcomes:
        row = outcome.row()
        if swept:
            row["gpus"], row["load"] = outcome.scenario.num_gpus, outcome.scenario.load
        rows.append(row)
    return rows


def _columns(rows: Sequence[dict[str, Any]]) -> tuple[Column, ...]:
    if not rows or "gpus" not in rows[0]:
        return COLUMNS
    # Across cluster sizes, the largest cluster would always be marked best.
    plain = tuple(replace(column, best=None) for column in COLUMNS)
    return (*SWEEP_COLUMNS, *plain)


def _explanations(outcomes: Sequence[ReplayOutcome]) -> list[dict[str, Any]]:
    """Every decision about the explained job, without repeated sentences."""
    return [
        {
            "policy": outcome.result.policy,
            "time_s": line.time_s,
            "workers": line.workers,
            "sentence": line.sentence,
        }
        for outcome in outcomes
        for before, line in pairwise((None, *outcome.result.explanations))
        if line is not None and (before is None or line.sentence != before.sentence)
    ]


def _list(text: str) -> list[str]:
    return list(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))


def _numbers(text: str, option: str) -> list[float]:
    try:
        values = [float(part) for part in _list(text)]
    except ValueError:
        raise UsageError(f"{option} {text}: expected numbers such as 0.5,1,2") from None
    if not values or not all(0 < value < float("inf") for value in values):
        raise UsageError(f"{option} {text}: expected numbers above 0, such as 0.5,1,2")
    return values


def _counts(text: str, option: str) -> list[int]:
    values = _list(text)
    if not values or not all(value.isdecimal() and value.strip("0") for value in values):
        raise UsageError(f"{option} {text}: expected whole numbers above 0, such as 64 or 32,64,128")
    if any(len(value) > len(str(MAX_DEVICES)) or int(value) > MAX_DEVICES for value in values):
        raise UsageError(f"{option} {text[:80]}: expected at most {MAX_DEVICES}")
    return [int(value) for value in values]
