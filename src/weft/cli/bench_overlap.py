"""``weft bench overlap``: weft's schedule against DDP, FSDP2 and DeAR on a shaped network."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from weft.errors import MissingToolError, UsageError, WeftError

COLUMNS = ("alone", "ddp", "ddp_best", "fsdp2", "dear", "weft", "weft_eager", "bound")


def overlap(
    quick: bool = False, as_json: bool = False, models: list[str] | None = None, ratios: list[float] | None = None
) -> None:
    """Time a training step with each contender at several network/compute ratios.

    Needs root and iproute2 for the network namespaces; nothing else should run on the machine meanwhile.
    Results go to benchmarks/results as JSON, Markdown and PNG; the full run takes about 100 minutes,
    --model and --ratio run a part of it.
    """
    benchmark = load_benchmark("overlap")
    scenarios_module = load_benchmark("overlap_scenarios")
    scenarios = scenarios_module.quick_run() if quick else scenarios_module.full_run()
    if models:
        scenarios = _only(scenarios, "model", models)
    if ratios:
        scenarios = _only(scenarios, "ratio", ratios)
    results = _run_with_progress(benchmark, scenarios)
    if results.rows:
        _draw(results)
    if as_json:
        print(json.dumps({"rows": results.rows}))
    else:
        _print_table(results)
    if results.failures:
        raise WeftError(
            f"{len(results.failures)} of {len(scenarios)} rows could not be measured, the others are in "
            f"{results.path('json')}; the first that failed: {results.failures[0]}"
        )


def _only(scenarios: list[Any], what: str, wanted: Sequence[str | float]) -> list[Any]:
    known = sorted({getattr(scenario, what) for scenario in scenarios})
    for value in wanted:
        if value not in known:
            raise UsageError(f"this run has no {what} {value!r}: expected one of {', '.join(map(str, known))}")
    return [scenario for scenario in scenarios if getattr(scenario, what) in wanted]


def load_benchmark(name: str) -> Any:
    """A module of ``benchmarks/``, which stands beside ``src/`` in the repository and is not installed."""
    root = Path(__file__).resolve().parents[3]
    if not (root / "benchmarks" / f"{name}.py").is_file():
        raise MissingToolError(
            f"the benchmarks are not part of the installed package and {root} does not hold them: "
            "clone the repository and run `scripts/bench` there"
        )
    if str(root) not in sys.path:
        sys.path.insert(0, str(root))
    return import_module(f"benchmarks.{name}")


def command_line() -> str:
    """What the user typed, without the machine's paths."""
    return shlex.join(["weft", "bench", *sys.argv[sys.argv.index("bench") + 1 :]] if "bench" in sys.argv else sys.argv)


def _run_with_progress(benchmark: Any, scenarios: list[Any]) -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task("starting", total=sum(scenario.num_steps for scenario in scenarios))

        def show(num_steps: int, what: str) -> None:
            progress.update(task, advance=num_steps, description=what)

        return benchmark.run_scenarios(scenarios, command=command_line(), on_progress=show)


def _draw(results: Any) -> None:
    """A picture is welcome but not the result: without matplotlib the run still counts."""
    caption = f"{results.command}, {results.started:%Y-%m-%d %H:%M}; median of interleaved rounds"
    try:
        load_benchmark("overlap_plot").draw(results.rows, results.path("png"), caption)
    except MissingToolError as error:
        print(f"weft: {error}", file=sys.stderr)


def _print_table(results: Any) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title="milliseconds per step (median)")
    for head in (
        "model",
        "hosts",
        "network/compute",
        *(name.replace("_", " ") for name in COLUMNS),
        "weft vs ddp",
    ):
        table.add_column(head, justify="left" if head == "model" else "right")
    for row in results.rows:
        times = [row[f"{name}_ms"] for name in COLUMNS]
        gain = row["ddp_ms"] / row["weft_ms"] if row["ddp_ms"] and row["weft_ms"] else None
        table.add_row(
            f"{row['model']} (emulated)" if row["emulated_compute"] else row["model"],
            str(row["hosts"]),
            f"{row['network_over_compute']:.2f}",
            *("-" if time_ms is None else f"{time_ms:.0f}" for time_ms in times),
            "-" if gain is None else f"{gain:.2f}x",
        )
    # Where the width is unknown (a file, a log) the table is written whole, not cut to 80 columns.
    console = Console() if sys.stdout.isatty() else Console(width=140)
    console.print(table)
    console.print(f"written to {results.path('json')} (and .md, .png)", soft_wrap=True)
