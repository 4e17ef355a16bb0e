"""The rows of ``weft sim`` and ``weft bench elastic``, and the columns they are printed in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from weft.cli.render import Column, duration, number, percent
from weft.sim.experiment import Outcome

COLUMNS = (
    Column("policy", "policy"),
    Column("mean_jct_s", "mean time", duration, min),
    Column("p50_jct_s", "median", duration, min),
    Column("p99_jct_s", "p99", duration, min),
    Column("lower_bound_s", "no mean below", duration),
    Column("makespan_s", "makespan", duration, min, extra=True),
    Column("utilization", "GPUs used", percent),
    Column("restarts_per_job", "restarts/job", number(2)),
    Column("decision_ms", "ms/decision", number(2), extra=True),
    Column("jobs_per_s", "jobs/s", number(0), extra=True),
)
SWEEP_COLUMNS = (Column("gpus", "GPUs", number(0)), Column("load", "load", number(2)))


def sim_rows(outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    """One row a policy; in a sweep each row also says for which cluster size and load it holds."""
    swept = len({outcome.scenario for outcome in outcomes}) > 1
    rows = []
    for outcome in outcomes:
        row = outcome.row()
        if swept:
            row["gpus"], row["load"] = outcome.scenario.num_gpus, outcome.scenario.load
        rows.append(row)
    return rows


def sim_columns(rows: Sequence[dict[str, Any]]) -> tuple[Column, ...]:
    if not rows or "gpus" not in rows[0]:
        return COLUMNS
    # Across cluster sizes "the best" would only ever be the largest cluster.
    plain = tuple(replace(column, best=None) for column in COLUMNS)
    return (*SWEEP_COLUMNS, *plain)


def explanation_rows(outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    """Every decision about the explained job, left out where the sentence stays the same."""
    rows: list[dict[str, Any]] = []
    for outcome in outcomes:
        last = ""
        for line in outcome.result.explanations:
            if line.sentence == last:
                continue
            last = line.sentence
            rows.append(
                {
                    "policy": outcome.result.policy,
                    "time_s": line.time_s,
                    "workers": line.workers,
                    "sentence": line.sentence,
                }
            )
    return rows
