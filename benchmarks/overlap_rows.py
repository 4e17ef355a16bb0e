"""From what the workers measured to one row of the table.  Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.overlap_bounds import (
    StepShape,
    barrier_bound_s,
    eager_bound_s,
    network_over_compute,
)
from benchmarks.overlap_scenarios import CONTENDERS, Scenario
from benchmarks.profile_scenarios import predicted_ms

Row = dict[str, Any]

# The frozen part of a row; a contender that was left out has null.
FIELDS = (
    *("model", "hosts", "emulated_compute", "network_over_compute"),
    *("alone_ms", "ddp_ms", "ddp_best_ms", "fsdp2_ms", "dear_ms", "weft_ms", "weft_eager_ms", "bound_ms"),
)


def make_row(
    scenario: Scenario,
    rate_bits_per_s: float,
    result: Mapping[str, Any],
    peak_bytes: Mapping[str, int],
) -> Row:
    """One row: the frozen fields first, then what helps to understand them."""
    shape = StepShape(**result["shape"])
    measured: Mapping[str, Any] = result["contenders"]
    row: Row = {
        "model": scenario.model,
        "hosts": scenario.num_hosts,
        "emulated_compute": scenario.timed is not None,
        "network_over_compute": round(network_over_compute(shape, scenario.num_hosts, rate_bits_per_s), 3),
    }
    for name in CONTENDERS:
        row[f"{name}_ms"] = _ms(measured[name]["step_s"]) if name in measured else None
    row["bound_ms"] = _ms(barrier_bound_s(shape, scenario.num_hosts, rate_bits_per_s))
    for name in (name for name in measured if name not in CONTENDERS):
        row[f"{name}_ms"] = _ms(measured[name]["step_s"])
    row |= {
        "ratio_wanted": scenario.ratio,
        "workers_per_host": scenario.workers_per_host,
        "eager_bound_ms": _ms(eager_bound_s(shape, scenario.num_hosts, rate_bits_per_s)),
        "forward_ms": _ms(shape.forward_s),
        "backward_ms": _ms(shape.backward_s),
        "update_ms": _ms(shape.update_s),
        "rate_mbit_per_s": round(rate_bits_per_s / 1e6, 1),
        "gradient_bytes": shape.gradient_bytes,
        "ddp_bucket_mb": result.get("ddp_bucket_mb"),
        "loss_equal": measured["weft"]["loss_equal_to_ddp"] if "weft" in measured else None,
        "weft_eager_loss_equal": measured["weft_eager"]["loss_equal_to_ddp"] if "weft_eager" in measured else None,
        "wire_bytes_per_step": {name: round(lane["wire_bytes_per_step"]) for name, lane in measured.items()},
        # Opened by rank 0 for this contender, beside those of the process group itself.
        "connections": {name: lane.get("num_connections") for name, lane in measured.items()},
        "state_bytes": {name: lane["state_bytes"] for name, lane in measured.items()},
        "round_ms": {name: [_ms(seconds) for seconds in lane["round_s"]] for name, lane in measured.items()},
        "peak_bytes": dict(peak_bytes),
        "predicted_ms": predicted_ms(scenario, rate_bits_per_s),
        "plans": {name: lane["plan"] for name, lane in measured.items() if "plan" in lane},
        "tuning_steps": {name: lane["num_tuning_steps"] for name, lane in measured.items() if "plan" in lane},
    }
    return row


def speedup(row: Row, slower: str, faster: str) -> float | None:
    """How many times as fast ``faster`` is; None when either was not measured."""
    above, below = row.get(f"{slower}_ms"), row.get(f"{faster}_ms")
    return above / below if above and below else None


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 2)
