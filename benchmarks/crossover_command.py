"""``weft bench crossover``: runs the scenarios, shows progress, prints the tables, draws the figure."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import crossover as benchmark
from benchmarks import crossover_plot, crossover_scenarios
from benchmarks.crossover_results import Results, read_results
from benchmarks.crossover_scenarios import Lone, Scenario
from weft.cli import render
from weft.cli.render import Column, number
from weft.errors import MissingToolError, UsageError, WeftError

COLUMNS = (
    Column("pair", "pair"),
    Column("job", "job"),
    Column("network_over_compute", "network/compute", number(2)),
    *(
        Column(f"{name}_ms", name.replace("_", " "), number(0))
        for name in ("alone", "serial", "in_phase", "random_phase", "crossover", "bound")
    ),
    Column("vs_serial", "vs serial", number(2)),
    Column("of_bound", "of bound", render.percent),
    Column("slowdowns", "slowdown A, B"),
    Column("loss_equal", "same losses", lambda same: "yes" if same else "NO"),
    Column("verdict", "pairing"),
)

LONE_COLUMNS = (
    Column("job", "job"),
    Column("step_ms", "step alone", number(0)),
    *(Column(name, title, number(4)) for name, title in (("overhead", "longer by"), ("low", "from"), ("high", "to"))),
    Column("num_pairs", "pairs of blocks"),
)


def crossover(command: str, *, quick: bool, as_json: bool, only: list[str] | None, resume: Path | None) -> None:
    """Measure pairs on the testbed."""
    scenarios = crossover_scenarios.quick_run() if quick else crossover_scenarios.full_run()
    if only:
        scenarios = _only(scenarios, only)
    continued = None if resume is None else read_results(resume)
    done = 0
    with render.progress("weft bench crossover") as report:

        def show(num_rows: int, what: str) -> None:
            nonlocal done
            done += num_rows
            report(what, done, len(scenarios))

        results = benchmark.run_scenarios(scenarios, command=command, on_progress=show, continued=continued)
    if results.rows:
        _draw(results)
    if as_json:
        render.print_json({"rows": results.rows, "lone": results.lone})
    else:
        if results.rows:
            shown = [_shown(row) for row in results.rows]
            render.print_table(shown, COLUMNS, title="milliseconds until both jobs have completed a step")
        if results.lone:
            render.print_table(results.lone, LONE_COLUMNS, title="one job alone, with sharing enabled")
        render.note(f"written to {results.path('json')} (and .md{', .png' if results.rows else ''})")
    if results.failures:
        raise WeftError(
            f"{len(results.failures)} of {len(scenarios)} rows could not be measured; the others are in "
            f"{results.path('json')}; first failure: {results.failures[0]}"
        )


def _only(scenarios: Sequence[Scenario | Lone], keys: list[str]) -> list[Scenario | Lone]:
    known = [scenario.key for scenario in scenarios]
    for key in keys:
        if not any(name.startswith(key) for name in known):
            raise UsageError(f"this run has no row {key!r}: expected the start of one of: {', '.join(known)}")
    return [scenario for scenario in scenarios if any(scenario.key.startswith(key) for key in keys)]


def _shown(row: dict[str, Any]) -> dict[str, Any]:
    one, other = row["slowdown"]["crossover"]
    return {
        **row,
        "vs_serial": row["serial_ms"] / row["crossover_ms"],
        "of_bound": row["bound_ms"] / row["crossover_ms"],
        "slowdowns": f"{one:.2f}, {other:.2f}",
        "verdict": "refuses" if row["refused"] else "pairs",
    }


def _draw(results: Results) -> None:
    """The figure is optional: without matplotlib the measurements still count."""
    caption = f"{results.command}, {results.started:%Y-%m-%d %H:%M}"
    try:
        crossover_plot.draw(results.rows, results.path("png"), caption)
    except MissingToolError as error:
        print(f"weft: {error}", file=sys.stderr)
