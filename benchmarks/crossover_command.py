"""``weft bench crossover``: runs the scenarios, shows progress, prints the tables, draws the figure."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import crossover as benchmark
from benchmarks import crossover_plot, crossover_scenarios
from benchmarks.crossover_results import LONE
from benchmarks.crossover_rows import ratio, share_of_bound
from benchmarks.crossover_scenarios import FULL_MINUTES, QUICK_MINUTES, Lone, Scenario
from benchmarks.figures import draw_if_possible
from benchmarks.record import results_folder
from weft.cli import render
from weft.cli.render import Column, number
from weft.errors import UsageError

COLUMNS = (
    Column("pair", "pair"),
    Column("job", "job"),
    Column("network_over_compute", "network/compute", number(2)),
    *(
        Column(f"{name}_ms", name.replace("_", " "), number(0))
        for name in ("alone", "serial", "in_phase", "random_phase", "crossover", "bound")
    ),
    Column("vs_serial", "vs serial"),
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


def crossover(
    command: str,
    *,
    quick: bool,
    as_json: bool,
    only: list[str] | None,
    out: Path | None = None,
    minutes: float | None = None,
    fresh: bool = False,
) -> None:
    """Measure pairs on the testbed."""
    scenarios = crossover_scenarios.quick_run() if quick else crossover_scenarios.full_run()
    if only:
        scenarios = _only(scenarios, only)
    done = 0
    with render.progress("weft bench crossover") as report:

        def show(num_rows: int, what: str) -> None:
            nonlocal done
            done += num_rows
            report(what, done, len(scenarios))

        record = benchmark.run_scenarios(
            scenarios,
            command=command,
            on_progress=show,
            folder=results_folder(out, quick=quick),
            minutes=minutes or (QUICK_MINUTES if quick else FULL_MINUTES),
            fresh=fresh or quick,
        )
    document = record.document()
    keys = {scenario.key for scenario in scenarios}
    rows, lone = ([row for row in document[part] if row["key"] in keys] for part in ("rows", LONE))
    if document["rows"]:
        draw_if_possible(crossover_plot.draw, document, record.path("png"))
    if as_json:
        render.print_json({"rows": rows, "lone": lone})
    else:
        if rows:
            title = "milliseconds until both jobs have completed a step"
            render.print_table([_shown(row) for row in rows], COLUMNS, title=title)
        if lone:
            render.print_table(lone, LONE_COLUMNS, title="one job alone, with sharing enabled")
        render.note(f"written to {record.path('json')} (and .md{', .png' if document['rows'] else ''})")
    record.conclude(keys, resumes=not quick)


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
        "vs_serial": ratio(row, "serial"),
        "of_bound": share_of_bound(row),
        "slowdowns": f"{one:.2f}, {other:.2f}",
        "verdict": "refuses" if row["refused"] else "pairs",
    }
