"""The measured tables in README and docs, made from the result files.

A table stands between ``<!-- table:NAME -->`` and ``<!-- /table -->``, with a line that says when and how it was
measured.  ``scripts/bench redraw`` writes the tables, and a test fails if one of them differs from its result file, so
a number in them is always a measured one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks.crossover_results import brief_table, full_table
from benchmarks.layer_summary import layers
from benchmarks.overlap_results import brief_hosts, brief_models, brief_profiles
from benchmarks.queue_results import brief_queue, headline_queue
from benchmarks.record import read_document, write_whole

Document = Mapping[str, Any]
ROOT = Path(__file__).resolve().parents[1]
_BLOCK = re.compile(r"(<!-- table:([a-z-]+) -->\n).*?(<!-- /table -->)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class DocsTable:
    """A table of the docs: which results it is made from, and how."""

    results: tuple[str, ...]
    lines: Callable[..., Sequence[str]]


def _made_by(module: str, name: str = "tables") -> Callable[..., Sequence[str]]:
    """A function of another benchmark, whose module is imported only when needed: some load torch or a controller."""

    def lines(document: Document) -> Sequence[str]:
        found: str | Sequence[str] = getattr(import_module(f"benchmarks.{module}"), name)(document)
        return found.rstrip().splitlines() if isinstance(found, str) else found

    return lines


TABLES = {
    "layers": DocsTable(("overlap", "overlap_profiles", "crossover", "elastic"), layers),
    "queue": DocsTable(("queue",), brief_queue),
    "queue-two-hosts": DocsTable(("queue",), headline_queue),
    "overlap-models": DocsTable(("overlap",), brief_models),
    "overlap-hosts": DocsTable(("overlap",), brief_hosts),
    "overlap-profiles": DocsTable(("overlap_profiles",), brief_profiles),
    "crossover": DocsTable(("crossover",), full_table),
    "crossover-brief": DocsTable(("crossover",), brief_table),
    "elastic-knowledge": DocsTable(("elastic",), _made_by("elastic.brief_tables", "by_knowledge")),
    "elastic-own-costs": DocsTable(("elastic",), _made_by("elastic.brief_tables", "by_interval")),
    "elastic-measures": DocsTable(("elastic",), _made_by("elastic.brief_tables", "by_measure")),
    "elastic-claims": DocsTable(("elastic",), _made_by("elastic.brief_tables", "claims")),
    "controller": DocsTable(("controller",), _made_by("controller", "summary_table")),
    "controller-costs": DocsTable(("controller_costs",), _made_by("controller_costs")),
    "session-costs": DocsTable(("session_costs",), _made_by("session_costs")),
    "restart": DocsTable(("restart",), _made_by("restart")),
    "scale": DocsTable(("scale",), _made_by("scale")),
    "ray-overhead": DocsTable(("ray_overhead",), _made_by("ray_overhead")),
    "dashboard": DocsTable(("dashboard",), _made_by("dashboard")),
}


def pages() -> list[Path]:
    """The pages that may contain tables."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def names_in(text: str) -> Iterator[str]:
    """The tables of a page."""
    return (found[2] for found in _BLOCK.finditer(text))


def filled(text: str, folder: Path) -> str:
    """The page with all of its tables made again from the results in this folder."""

    def block(found: re.Match[str]) -> str:
        table = TABLES[found[2]]
        documents = [read_document(folder / f"{name}.json") for name in table.results]
        return "\n".join([found[1].rstrip(), *table.lines(*documents), "", origin(documents), found[3]])

    return _BLOCK.sub(block, text)


def origin(documents: Sequence[Document]) -> str:
    """How, when, and where: the line below a table."""
    commands: dict[str, list[str]] = {}
    for document in documents:
        machine = document["machine"]
        for run in _runs(document):
            commit = f", commit {run['commit']}" if run.get("commit") else ""
            where = f"{run['date'][:10]}{commit}, {machine['cores']} cores ({machine['cpu']})"
            commands.setdefault(where, []).append(f"`{run['command']}`")
    return "; ".join(f"{', '.join(dict.fromkeys(names))}: {where}" for where, names in commands.items()) + "."


def _runs(document: Document) -> list[Mapping[str, Any]]:
    """The newest row of each version of the code that measured some; the document itself if it was measured whole."""
    rows = [row for row in document.get("rows", ()) if row.get("code") and row.get("command")]
    newest = {row["code"]: row for row in sorted(rows, key=lambda row: str(row["date"]))}
    return sorted(newest.values(), key=lambda row: str(row["date"])) or [document]


def fill_all(folder: Path) -> list[Path]:
    """Write every page whose tables are out of date; which ones they were."""
    written = []
    for path in pages():
        text = path.read_text(encoding="utf-8")
        new = filled(text, folder)
        if new != text:
            write_whole(path, new)
            written.append(path)
    return written
