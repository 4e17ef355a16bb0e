"""``weft bench elastic``: runs the studies, prints the tables, and saves them as JSON, Markdown, and a figure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from weft.cli import render
from weft.cli.bench_record import keep_record, markdown_table, record_folder
from weft.cli.render import Column, duration, number
from weft.cli.sim import COLUMNS
from weft.sim.studies.comparison import Comparison, compare, find_data

# Wall-clock speeds are only in the JSON; the tables show CPU time, which a busy machine does not distort.
LEFT_OUT = ("p50_jct_s", "makespan_s", "decision_ms", "jobs_per_s")
BENCH_COLUMNS = (
    Column("workload", "workload"),
    Column("crossover", "shared", lambda shared: "yes" if shared else "no"),
    *(Column(column.field, column.heading, column.write) for column in COLUMNS if column.field not in LEFT_OUT),
    Column("published_mean_jct_s", "published", duration),
    Column("over_published", "ours / publ.", number(2)),
)
CLAIM_COLUMNS = (
    Column("claim", "claim"),
    Column("limit", "limit"),
    Column("measured", "measured", number(3)),
    Column("met", "met", lambda met: "yes" if met else "NO"),
)


def run_elastic(*, quick: bool, as_json: bool, data: Path | None, out: Path | None) -> None:
    folder = find_data(data)
    target = record_folder(out)
    if folder is None:
        render.note("the public traces were not found (set --data DIR or WEFT_DATA): using synthetic workloads instead")
    with render.progress("weft bench elastic") as report:
        comparison = compare(folder, quick=quick, progress=report)
    if target is not None:
        _keep(target, comparison, quick=quick)
    if as_json:
        render.print_json(comparison.document())
        return
    for title, rows, columns in _tables(comparison):
        render.print_table(rows, columns, title=title)


def _keep(folder: Path, comparison: Comparison, *, quick: bool) -> None:
    """A quick run never overwrites the results of a full one."""
    from weft.sim.studies.pictures import plot_comparison

    name, flag = ("elastic-quick", " --quick") if quick else ("elastic", "")
    command = f"weft bench elastic{flag}"
    kept = keep_record(folder, name, command, comparison.document(), _text_tables(comparison))
    picture = folder / f"{name}.png"
    plot_comparison(picture, comparison)
    for path in (*kept, picture):
        render.note(f"wrote {path}")


Tables = list[tuple[str, list[dict[str, Any]], tuple[Column, ...]]]


def _tables(comparison: Comparison) -> Tables:
    document = comparison.document()
    tables: Tables = [("simulations", document["rows"], BENCH_COLUMNS)]
    if document["claims"]:
        tables.append(("claims", document["claims"], CLAIM_COLUMNS))
    for title, rows in comparison.side_tables().items():
        columns = tuple(Column(name, name.replace("_", " ")) for name in rows[0])
        tables.append((title, rows, columns))
    return tables


def _text_tables(comparison: Comparison) -> str:
    """The same tables in Markdown."""
    parts = []
    for title, rows, columns in _tables(comparison):
        body = []
        for row in rows:
            cells = (row.get(column.field) for column in columns)
            body.append(["-" if v is None else c.write(v) for c, v in zip(columns, cells, strict=True)])
        parts += [f"## {title}", "", *markdown_table([column.heading for column in columns], body), ""]
    return "\n".join(parts)
