"""What sharing costs a job without a partner.

The machine's speed varies from minute to minute by more than the cost to be measured.  So the job with sharing and the
one without run in the same processes, alternating every few steps, and each block is compared only with the one next to
it.  The result is the median of many such pairs, with its 95 % confidence interval.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from statistics import median
from typing import Any

from benchmarks.crossover_fleet import Fleet
from benchmarks.crossover_scenarios import Lone
from benchmarks.overlap_bounds import half_exchange_s
from benchmarks.testbed import HostFailed, Testbed

NUM_HOSTS = 2
NUM_WARMUP_STEPS = 3
NUM_COMPUTE_STEPS = 10
RISK = 0.05


def measure_lone(bed: Testbed, fleet: Fleet, lone: Lone) -> dict[str, Any]:
    """One row of the table of lone jobs."""
    order = {"size": asdict(lone.size), "num_warmup_steps": NUM_WARMUP_STEPS}
    described = fleet.ask({"A": {"do": "prepare", "kind": "single", "role": "", **order}})["A"][0]
    run = {"do": "run", "num_steps": NUM_COMPUTE_STEPS, "start_s": 0.0, "with_spans": False}
    bare = fleet.ask({"A": run})["A"][0]
    compute_s = (bare["ends_s"][-1] - bare["began_s"]) / NUM_COMPUTE_STEPS
    bed.set_rate(2 * half_exchange_s(described["gradient_bytes"], NUM_HOSTS, 1.0) / (lone.ratio * compute_s))
    blocks = {"do": "lone", "kind": lone.kind, "num_blocks": lone.num_blocks, "num_steps": lone.num_steps, **order}
    answers = fleet.ask({"A": blocks})["A"]
    if not all(answer["is_shared"] for answer in answers):
        raise HostFailed(f"the {lone.kind} job lost its lease server, so what was measured is not sharing")
    off_s, on_s = answers[0]["blocks_s"]["off"], answers[0]["blocks_s"]["on"]
    return {
        "job": lone.kind,
        "step_ms": round(1e3 * median(off_s), 2),
        "num_pairs": len(off_s),
        **compared(off_s, on_s),
        # The gate's own time in a step, which no noise can hide.
        "gate_share": round(max(answer["turn_s"] for answer in answers) / median(on_s), 6),
        "loss_equal": all(answer["loss_equal"] for answer in answers),
    }


def compared(off_s: Sequence[float], on_s: Sequence[float]) -> dict[str, float]:
    """By how much the second of each pair is longer: the median, and its 95 % confidence interval.

    >>> compared([1.0] * 9, [1.0, 1.0, 1.0, 1.0, 1.01, 1.02, 1.02, 1.02, 1.02])
    {'overhead': 0.01, 'low': 0.0, 'high': 0.02}
    """
    extra = sorted(on / off - 1.0 for off, on in zip(off_s, on_s, strict=True))
    rank = _rank_of_bound(len(extra))
    found = {"overhead": median(extra), "low": extra[rank], "high": extra[-1 - rank]}
    return {name: round(value, 5) for name, value in found.items()}


def _rank_of_bound(num_values: int) -> int:
    """How many values to leave out on either side: a value is on either side of the median with equal probability.

    >>> _rank_of_bound(100)
    39
    """
    below, rank = 0.0, -1
    while rank < (num_values - 1) // 2:
        below += math.comb(num_values, rank + 1) / 2**num_values
        if 2 * below > RISK:
            break
        rank += 1
    return max(0, rank)
