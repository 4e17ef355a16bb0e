"""``weft bench elastic``: runs the studies, prints the tables, and saves them as JSON, Markdown, and a figure."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.elastic import pictures
from benchmarks.elastic.comparison import SIDE_TABLES, compare, find_data
from benchmarks.figures import draw_if_possible
from benchmarks.record import keep_record, markdown_table, results_folder
from weft.cli import render
from weft.cli.render import Column, number
from weft.cli.sim import COLUMNS

HOUR_S = 3600.0
# Wall-clock speeds are only in the JSON; the tables show CPU time, which a busy machine does not distort.
LEFT_OUT = ("p50_jct_s", "makespan_s", "decision_ms", "jobs_per_s")


def _in_hours(seconds: float) -> str:
    return f"{seconds / HOUR_S:.2f}"


def _in_one_unit(column: Column) -> Column:
    """Times of one column in hours, whatever their size."""
    if not column.field.endswith("_s"):
        return Column(column.field, column.heading, column.write)
    return Column(column.field, f"{column.heading}, h", _in_hours)


BENCH_COLUMNS = (
    Column("workload", "workload"),
    Column("crossover", "shared", lambda shared: "yes" if shared else "no"),
    *(_in_one_unit(column) for column in COLUMNS if column.field not in LEFT_OUT),
    Column("published_mean_jct_s", "published, h", _in_hours),
    Column("over_published", "ours / publ.", number(2)),
)
CLAIM_COLUMNS = (
    Column("claim", "claim"),
    Column("limit", "limit"),
    Column("measured", "measured", number(3)),
    Column("met", "met", lambda met: "yes" if met else "NO"),
)


def elastic(command: str, *, quick: bool, as_json: bool, data: Path | None, out: Path | None) -> None:
    """Replay the workloads under every policy."""
    folder = find_data(data)
    target = results_folder(out, quick=quick)
    if folder is None:
        render.note("the public traces were not found (set --data DIR or WEFT_DATA): using synthetic workloads instead")
    with render.progress("weft bench elastic") as report:
        document = compare(folder, quick=quick, progress=report).document()
    whole = keep_record(target, "elastic", command, document, tables(document))
    draw_if_possible(pictures.draw, whole, target / "elastic.png")
    render.note(f"written to {target / 'elastic.json'} (and .md, .png)")
    if as_json:
        render.print_json(document)
        return
    for title, rows, columns in _tables(document):
        render.print_table(rows, columns, title=title)


Tables = list[tuple[str, list[dict[str, Any]], tuple[Column, ...]]]


def _tables(document: Mapping[str, Any]) -> Tables:
    found: Tables = [("simulations", document["rows"], BENCH_COLUMNS)]
    if document["claims"]:
        found.append(("claims", document["claims"], CLAIM_COLUMNS))
    for title in SIDE_TABLES:
        if rows := document.get(title):
            columns = tuple(Column(name, name.replace("_", " ")) for name in rows[0])
            found.append((title.replace("_", " "), rows, columns))
    return found


def tables(document: Mapping[str, Any]) -> str:
    """The same tables in Markdown."""
    parts = []
    for title, rows, columns in _tables(document):
        body = []
        for row in rows:
            cells = (row.get(column.field) for column in columns)
            body.append(["-" if v is None else c.write(v) for c, v in zip(columns, cells, strict=True)])
        parts += [f"## {title}", "", *markdown_table([column.heading for column in columns], body), ""]
    return "\n".join(parts)
