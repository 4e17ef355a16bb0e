"""The tables of ``weft bench elastic`` that the docs show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.elastic.equal_knowledge import ADAPTED, CONDITIONS, FIGURES, PUBLISHED
from benchmarks.record import Row, markdown_table

Document = Mapping[str, Any]
HOUR_S = 3600.0
KNOWS = {
    "lengths": "how long each job will run",
    "lengths of finished jobs": "the lengths of finished jobs of the same name",
    "no lengths": "nothing about the job but the workers it requests; the lengths of all jobs seen so far",
}
OWN = {conditions: given for conditions, given in CONDITIONS.items() if conditions != PUBLISHED}


def by_knowledge(document: Document) -> list[str]:
    """The default policy over the published numbers, by what it knows, with fixed and with free batch sizes."""
    heads = ["`balanced` knows", "batch sizes", "vs Optimus+Oracle", "vs Tiresias", "vs Pollux"]
    body = []
    for conditions, batches in ((PUBLISHED, "fixed"), (ADAPTED, "may change, as with Pollux")):
        for knows, words in KNOWS.items():
            for row in _rows(document, conditions, knows, "balanced"):
                # Optimus+Oracle knows lengths: compared only with equal knowledge.
                optimus = _over(row, "optimus") if knows == "lengths" and conditions == PUBLISHED else "-"
                body.append([words, batches, optimus, _over(row, "tiresias"), _over(row, "pollux")])
    return markdown_table(heads, body)


def by_interval(document: Document) -> list[str]:
    """With weft's own cost of a start, at several intervals between decisions."""
    heads = [
        "`balanced` knows",
        *(f"decisions every {given['decision_interval_s']:g} s, vs Pollux" for given in OWN.values()),
    ]
    body = []
    for knows, words in KNOWS.items():
        rows = [row for conditions in OWN for row in _rows(document, conditions, knows, "balanced")]
        body.append([words, *(_over(row, "pollux") for row in rows)])
    return markdown_table(heads, body)


def by_measure(document: Document) -> list[str]:
    """Mean, median, 99th percentile, and makespan of every scheduler, under the published conditions."""
    heads = ["scheduler", "knows", "mean, h", "median, h", "p99, h", "makespan, h"]
    rows = [row for row in document["equal_knowledge"] if row["conditions"] == PUBLISHED]
    body = [[row["scheduler"], row["knows"], *(f"{row[name] / HOUR_S:.2f}" for name in FIGURES)] for row in rows]
    bound_h = rows[0]["lower_bound_s"] / HOUR_S
    return markdown_table(heads, [*body, ["lower bound on the mean", "everything", f"{bound_h:.2f}", "-", "-", "-"]])


def claims(document: Document) -> list[str]:
    """Every target with what was measured."""
    body = [[row["claim"], row["limit"], row["measured"], "yes" if row["met"] else "no"] for row in document["claims"]]
    return markdown_table(["claim", "target", "measured", "met"], body)


def mean_over(document: Document, knows: str, peer: str) -> float:
    """Mean completion time of the default policy over a peer's, under the published conditions."""
    [row] = _rows(document, PUBLISHED, knows, "balanced")
    return float(row[f"over_{peer}"])


def _rows(document: Document, conditions: str, knows: str, scheduler: str) -> Sequence[Row]:
    wanted = {"conditions": conditions, "knows": knows, "scheduler": scheduler}
    return [row for row in document["equal_knowledge"] if wanted.items() <= row.items()]


def _over(row: Row, peer: str) -> str:
    return f"{row[f'over_{peer}']:.2f}"
