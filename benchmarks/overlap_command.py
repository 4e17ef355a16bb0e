"""``weft bench overlap``: runs the scenarios, shows progress, prints the table, draws the figure."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import overlap as benchmark
from benchmarks import overlap_plot, overlap_scenarios
from benchmarks.figures import draw_if_possible
from benchmarks.overlap_results import NAME, PROFILES_NAME
from benchmarks.overlap_rows import best_of, best_peer, prediction_errors, speedup
from benchmarks.overlap_scenarios import FULL_MINUTES, QUICK_MINUTES, Scenario
from benchmarks.profile_scenarios import FULL_MINUTES as PROFILES_MINUTES
from benchmarks.profile_scenarios import profiles_run
from benchmarks.record import results_folder
from weft.cli import render
from weft.cli.render import Column, number
from weft.errors import UsageError

TIMES = ("alone", "best_ddp", "fsdp2", "dear", "weft", "weft_eager", "bound")
COLUMNS = (
    Column("label", "model"),
    Column("hosts", "hosts", number(0)),
    Column("workers_per_host", "workers/host", number(0)),
    Column("network_over_compute", "network/compute", number(2)),
    Column("rounds", "rounds", number(0)),
    *(Column(f"{name}_ms", name.replace("_", " "), number(0)) for name in TIMES),
    Column("vs_ddp", "weft vs ddp"),
    Column("vs_best", "weft vs best other"),
)


def overlap(
    command: str,
    *,
    quick: bool,
    as_json: bool,
    models: list[str] | None,
    ratios: list[float] | None,
    parts: list[str] | None = None,
    hosts: list[int] | None = None,
    profiles: bool = False,
    out: Path | None = None,
    minutes: float | None = None,
    fresh: bool = False,
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
    if parts:
        scenarios = _only(scenarios, "part", parts)
    if hosts:
        scenarios = _only(scenarios, "num_hosts", hosts)
    if ratios:
        scenarios = _only(scenarios, "ratio", ratios)
    done = 0
    with render.progress("weft bench overlap") as report:

        def show(num_rows: int, what: str) -> None:
            nonlocal done
            done += num_rows
            report(what, done, len(scenarios))

        record = benchmark.run_scenarios(
            scenarios,
            command=command,
            on_progress=show,
            folder=results_folder(out, quick=quick),
            name=PROFILES_NAME if profiles else NAME,
            minutes=minutes or (QUICK_MINUTES if quick else PROFILES_MINUTES if profiles else FULL_MINUTES),
            with_memory=not quick,
            fresh=fresh or quick,
        )
    keys = {scenario.key for scenario in scenarios}
    rows = [row for row in record.rows if row["key"] in keys]
    if record.rows:
        draw_if_possible(
            overlap_plot.draw_profiles if profiles else overlap_plot.draw, record.document(), record.path("png")
        )
    if as_json:
        render.print_json({"rows": rows})
    else:
        render.print_table([_shown(row) for row in rows], COLUMNS, title="milliseconds per step (median)")
        for line in prediction_errors(rows):
            print(line)
        print(f"written to {record.path('json')} (and .md, .png)")
    record.conclude(keys, resumes=not quick)


def _only(scenarios: Sequence[Scenario], what: str, wanted: Sequence[str | float]) -> list[Scenario]:
    known = sorted({getattr(scenario, what) for scenario in scenarios})
    for value in wanted:
        if value not in known:
            name = {"num_hosts": "number of hosts"}.get(what, what)
            raise UsageError(f"this run has no {name} {value!r}: expected one of {', '.join(map(str, known))}")
    return [scenario for scenario in scenarios if getattr(scenario, what) in wanted]


def _shown(row: dict[str, Any]) -> dict[str, Any]:
    best, ddp = best_peer(row), best_of(row, "DDP")
    return {
        **row,
        "label": f"{row['model']} (emulated)" if row["emulated_compute"] else row["model"],
        "best_ddp_ms": None if ddp is None else row[f"{ddp}_ms"],
        "vs_ddp": speedup(row, "ddp", "weft"),
        "vs_best": None if best is None else speedup(row, best, "weft"),
    }
