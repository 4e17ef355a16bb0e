"""``weft bench overlap``: runs the scenarios, shows progress, prints the table, draws the figure."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from benchmarks import overlap as benchmark
from benchmarks import overlap_plot, overlap_scenarios
from benchmarks.overlap_results import Results
from benchmarks.overlap_scenarios import Scenario
from benchmarks.profile_scenarios import profiles_run
from weft.cli import render
from weft.cli.render import Column, number
from weft.errors import MissingToolError, UsageError, WeftError

TIMES = ("alone", "ddp", "ddp_best", "fsdp2", "dear", "weft", "weft_eager", "bound")
COLUMNS = (
    Column("label", "model"),
    Column("hosts", "hosts", number(0)),
    Column("workers_per_host", "workers/host", number(0)),
    Column("network_over_compute", "network/compute", number(2)),
    *(Column(f"{name}_ms", name.replace("_", " "), number(0)) for name in TIMES),
    Column("gain", "weft vs ddp", lambda gain: f"{gain:.2f}x"),
)


def overlap(
    command: str,
    *,
    quick: bool,
    as_json: bool,
    models: list[str] | None,
    ratios: list[float] | None,
    profiles: bool = False,
) -> None:
    """Time a training step with each contender at several network/compute ratios."""
    if profiles and quick:
        raise UsageError("--profiles has no short version: leave out --quick, or choose models with --model")
    if profiles:
        scenarios = profiles_run()
    else:
        scenarios = overlap_scenarios.quick_run() if quick else overlap_scenarios.full_run()
    if models:
        scenarios = _only(scenarios, "model", models)
    if ratios:
        scenarios = _only(scenarios, "ratio", ratios)
    num_steps, done = sum(scenario.num_steps for scenario in scenarios), 0
    with render.progress("weft bench overlap") as report:

        def show(num_done: int, what: str) -> None:
            nonlocal done
            done += num_done
            report(what, done, num_steps)

        results = benchmark.run_scenarios(scenarios, command=command, on_progress=show)
    if results.rows:
        _draw(results)
    if as_json:
        render.print_json({"rows": results.rows})
    else:
        render.print_table([_shown(row) for row in results.rows], COLUMNS, title="milliseconds per step (median)")
        print(f"written to {results.path('json')} (and .md, .png)")
    if results.failures:
        raise WeftError(
            f"{len(results.failures)} of {len(scenarios)} rows could not be measured; the others are in "
            f"{results.path('json')}; first failure: {results.failures[0]}"
        )


def _only(scenarios: Sequence[Scenario], what: str, wanted: Sequence[str | float]) -> list[Scenario]:
    known = sorted({getattr(scenario, what) for scenario in scenarios})
    for value in wanted:
        if value not in known:
            raise UsageError(f"this run has no {what} {value!r}: expected one of {', '.join(map(str, known))}")
    return [scenario for scenario in scenarios if getattr(scenario, what) in wanted]


def _shown(row: dict[str, Any]) -> dict[str, Any]:
    return {
        **row,
        "label": f"{row['model']} (emulated)" if row["emulated_compute"] else row["model"],
        "gain": row["ddp_ms"] / row["weft_ms"] if row["ddp_ms"] and row["weft_ms"] else None,
    }


def _draw(results: Results) -> None:
    """The figure is optional: without matplotlib the measurements still count."""
    caption = f"{results.command}, {results.started:%Y-%m-%d %H:%M}; median of interleaved rounds"
    try:
        overlap_plot.draw(results.rows, results.path("png"), caption)
    except MissingToolError as error:
        print(f"weft: {error}", file=sys.stderr)
