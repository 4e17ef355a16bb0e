"""What each layer gains alone, in one table: the README's.

Of several rows, the table has the least and the largest ratio, each with its 95 % confidence interval over rounds.
Elastic is simulated once, without chance, so its ratios have no interval.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks.crossover_rows import ratio
from benchmarks.elastic.brief_tables import mean_over
from benchmarks.intervals import Ratio, interval_note, ratio_range
from benchmarks.overlap_results import brief_rows
from benchmarks.overlap_rows import best_of, best_peer, speedup
from benchmarks.record import Row, markdown_table

Document = Mapping[str, Any]


def layers(overlap: Document, profiles: Document, crossover: Document, elastic: Document) -> list[str]:
    """One row per setting; ranges over the rows of the benchmark that has it."""
    real = [row for row in brief_rows(overlap["rows"]) if not row["emulated_compute"]]
    lone = [row for row in profiles["rows"] if row["workers_per_host"] == 1]
    shared = [row for row in profiles["rows"] if row["workers_per_host"] > 1]
    pairs = [row for row in crossover["rows"] if row["job"] == "ddp" and row["pair"] == "equal"]
    measured = [
        ("overlap", "training on CPU cores, 2 hosts", "default DDP", _faster(real, lambda row: "ddp")),
        ("overlap", "the same", "the fastest of DDP, FSDP2, and DeAR", _faster(real, best_peer)),
        ("overlap", "five popular models, emulated compute, 2 to 8 hosts of 1 worker", "DDP, best", _ddp(lone)),
        ("overlap", "the same, 2 hosts of 2 or 4 workers", "DDP, best", _ddp(shared)),
        ("crossover", "two DDP jobs on 2 hosts", "one after the other", _paired(pairs, "serial")),
        ("crossover", "the same", "both at once, out of phase", _paired(pairs, "random_phase")),
    ]
    simulated = [
        ("Pollux workloads, simulated, lengths known", "Optimus+Oracle", _over(elastic, "lengths", "optimus")),
        ("the same, unknown lengths", "Tiresias", _over(elastic, "no lengths", "tiresias")),
        ("the same, unknown lengths", "Pollux", _over(elastic, "no lengths", "pollux")),
    ]
    body = [(*words, ratio_range(ratios)) for *words, ratios in measured]
    body += [("elastic", *words) for words in simulated]
    table = markdown_table(["layer", "measured on", "compared with", "faster"], body)
    return [*table, *interval_note(ratio for *_, ratios in measured for ratio in ratios)]


def _ddp(rows: Sequence[Row]) -> list[Ratio]:
    return _faster(rows, lambda row: best_of(row, "DDP"))


def _faster(rows: Sequence[Row], peer: Callable[[Row], str | None]) -> list[Ratio]:
    found = [speedup(row, name, "weft") for row in rows if (name := peer(row)) is not None]
    return [one for one in found if one is not None]


def _paired(rows: Sequence[Row], name: str) -> list[Ratio]:
    return [ratio(row, name) for row in rows]


def _over(document: Document, knows: str, peer: str) -> str:
    return f"{1 / mean_over(document, knows, peer):.2f}x"
