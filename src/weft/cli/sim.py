"""``weft sim``: replay a queue of jobs under several policies."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weft.errors import InputError, UsageError

if TYPE_CHECKING:
    from weft.sim.experiment import Outcome, Scenario
    from weft.sim.options import SimulationOptions
    from weft.sim.workload import Workload

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)

# Beyond this many jobs the log of events and stays is only kept when a picture or a timeline needs it.
MAX_RECORDED_JOBS = 20_000


@app.command()
def sim(
    workload: Annotated[
        str, typer.Argument(help="a CSV or YAML file of jobs, or synthetic:extreme|moderate|none[:JOBS]")
    ],
    profiles: Annotated[
        Path | None,
        typer.Option(help="folder of application profiles [default: ../profiles from the workload]"),
    ] = None,
    gpus: Annotated[str, typer.Option(help="GPUs of the cluster; several, like 32,64,128, for a sweep")] = "64",
    gpus_per_node: Annotated[int, typer.Option(min=1, help="GPUs of a node")] = 4,
    policy: Annotated[str, typer.Option(help="policies to compare, like balanced,fifo [default: all]")] = "",
    restart_s: Annotated[float, typer.Option(help="what a (re)start costs a job, in seconds")] = 30.0,
    seed: Annotated[int, typer.Option(help="seed of everything random")] = 0,
    crossover: Annotated[bool, typer.Option("--crossover", help="let two jobs take turns on a device")] = False,
    load: Annotated[str, typer.Option(help="arrivals so many times as fast; several for a sweep")] = "1",
    plot: Annotated[Path | None, typer.Option(help="draw completion times, GPUs and jobs here")] = None,
    trace: Annotated[Path | None, typer.Option(help="write a timeline for Perfetto here")] = None,
    explain: Annotated[str, typer.Option(help="say for this job why it got what it got, each time")] = "",
    decision_s: Annotated[float, typer.Option(help="seconds between decisions; 0: at once")] = 60.0,
    prediction_error: Annotated[
        float, typer.Option(help="relative error of the speeds and lengths that the policy is told")
    ] = 0.0,
    explore: Annotated[bool, typer.Option("--explore", help="speeds are known only at sizes already tried")] = False,
    node_mtbf_s: Annotated[float, typer.Option(help="mean time between failures of a node; 0: none fail")] = 0.0,
    node_repair_s: Annotated[float, typer.Option(help="how long a failed node stays away")] = 1800.0,
    handover_s: Annotated[float, typer.Option(help="what a handover between two sharing jobs costs")] = 0.001,
    json_out: Annotated[bool, typer.Option("--json", help="rows as JSON on stdout")] = False,
) -> None:
    """Replay WORKLOAD under each policy: how long people wait, and how far that is from the best possible."""
    from weft.cli import render
    from weft.elastic import POLICIES, policy_named
    from weft.sim.experiment import Scenario, run_scenarios
    from weft.sim.options import SimulationOptions

    policies = _list(policy) or list(POLICIES)
    for name in policies:
        policy_named(name)
    scenarios = [
        Scenario(num_gpus, gpus_per_node, one_load)
        for one_load in _numbers(load, "--load")
        for num_gpus in _counts(gpus, "--gpus")
    ]
    _check_outputs(plot, trace, scenarios)
    jobs = _read(workload, profiles, seed, scenarios)
    if explain:
        _check_job(jobs, explain)
    options = SimulationOptions(
        decision_interval_s=decision_s,
        restart_s=restart_s,
        seed=seed,
        prediction_error=prediction_error,
        explore=explore,
        crossover=crossover,
        handover_s=handover_s,
        node_mtbf_s=node_mtbf_s,
        node_repair_s=node_repair_s,
        explained_jobs=frozenset({explain} if explain else ()),
        record=bool(plot or trace) or len(jobs.jobs) <= MAX_RECORDED_JOBS,
    )
    with render.progress(jobs.name) as report:
        outcomes = list(run_scenarios(jobs, scenarios, policies, options, progress=report))
    _write_outputs(outcomes, plot, trace)
    _print(outcomes, jobs, options, explain, as_json=json_out)


def _read(source: str, profiles: Path | None, seed: int, scenarios: list[Scenario]) -> Workload:
    from weft.cli import render
    from weft.sim.readers.applications import ApplicationFolder
    from weft.sim.readers.assembly import fit_requests
    from weft.sim.readers.sources import read_workload
    from weft.sim.synthetic import PREFIX, synthetic_workload

    largest = max(scenario.num_gpus for scenario in scenarios)
    if source.startswith(PREFIX):
        folder = None if profiles is None else ApplicationFolder(profiles)
        return synthetic_workload(source, seed=seed, applications=folder, num_devices=largest)
    jobs = read_workload(Path(source), num_devices=largest, profiles=profiles)
    for num_gpus in sorted({scenario.num_gpus for scenario in scenarios}):
        _, cut = fit_requests(jobs, num_gpus)
        if cut:
            render.note(f"asking for more than {num_gpus} GPUs, cut to what there is: {', '.join(cut)}")
    return jobs


def _check_outputs(plot: Path | None, trace: Path | None, scenarios: list[Scenario]) -> None:
    """Complain about a file that cannot be written before the work, not after it."""
    for option, path in (("--plot", plot), ("--trace", trace)):
        if path is not None and not path.absolute().parent.is_dir():
            raise InputError(f"{option} names a file in a folder that is not there: make it", file=str(path))
        if path is not None and path.is_dir():
            raise InputError(f"{option} names a folder: expected a file", file=str(path))
    if plot is not None and plot.suffix.lower() not in (".png", ".svg", ".pdf"):
        raise InputError("--plot can draw .png, .svg and .pdf: change the ending", file=str(plot))
    if trace is not None and len(scenarios) > 1:
        raise UsageError("--trace shows one cluster: give one value each for --gpus and --load")


def _check_job(jobs: Workload, name: str) -> None:
    import difflib

    names = [job.spec.name for job in jobs.jobs]
    if name not in names:
        near = difflib.get_close_matches(name, names, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"its first job is {names[0]!r}"
        raise UsageError(f"--explain {name}: workload {jobs.name} has no such job: {hint}")


def _write_outputs(outcomes: list[Outcome], plot: Path | None, trace: Path | None) -> None:
    if plot is not None:
        from weft.sim.plots import plot_replays, plot_sweep

        swept = len({outcome.scenario for outcome in outcomes}) > 1
        (plot_sweep if swept else plot_replays)(plot, outcomes)
    if trace is not None:
        from weft.core.chrome_trace import write_chrome_trace
        from weft.sim.trace import timeline

        spans = [span for o in outcomes for span in timeline(o.result, o.scenario.cluster())]
        write_chrome_trace(trace, spans)


def _print(outcomes: list[Outcome], jobs: Workload, options: SimulationOptions, explain: str, *, as_json: bool) -> None:
    from weft.cli import render
    from weft.cli.sim_table import explanation_rows, sim_columns, sim_rows

    rows = sim_rows(outcomes)
    if as_json:
        document: dict[str, Any] = {"rows": rows}
        if explain:
            document["explanations"] = explanation_rows(outcomes)
        render.print_json(document)
        return
    shared = ", with crossover" if options.crossover else ""
    title = f"{jobs.name}: {len(jobs.jobs)} jobs, restart {options.restart_s:g} s{shared}"
    render.print_table(rows, sim_columns(rows), title=title)
    for line in explanation_rows(outcomes) if explain else ():
        moment = render.duration(line["time_s"])
        render.print_line(f"{line['policy']:>9}  {moment:>9}  {line['sentence']}")


def _list(text: str) -> list[str]:
    return list(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))


def _numbers(text: str, option: str) -> list[float]:
    try:
        values = [float(part) for part in _list(text)]
    except ValueError:
        raise UsageError(f"{option} {text}: expected numbers like 0.5,1,2") from None
    if not values or not all(0 < value < float("inf") for value in values):
        raise UsageError(f"{option} {text}: expected numbers above 0, like 0.5,1,2")
    return values


def _counts(text: str, option: str) -> list[int]:
    values = _list(text)
    if not values or not all(value.isdecimal() and int(value) > 0 for value in values):
        raise UsageError(f"{option} {text}: expected whole numbers above 0, like 64 or 32,64,128")
    return [int(value) for value in values]
