"""Turns what the workers measured into one row of the table.  Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean, median
from typing import Any

from benchmarks.intervals import Ratio, paired_ratio
from benchmarks.overlap_bounds import StepShape, barrier_bound_s, eager_bound_s, half_exchange_s
from benchmarks.overlap_scenarios import CONTENDERS, Scenario
from benchmarks.profile_scenarios import predicted_ms
from benchmarks.record import Row

# The frozen part of a row; a contender that was left out has null.
FIELDS = (
    *("model", "hosts", "emulated_compute", "network_over_compute"),
    *("alone_ms", "ddp_ms", "ddp_best_ms", "fsdp2_ms", "dear_ms", "weft_ms", "weft_eager_ms", "bound_ms"),
)
# Contenders that are the same system with other options: a table quotes the best of each.
PEERS = {
    "DDP": ("ddp", "ddp_best", "ddp_list", "ddp_plan"),
    "FSDP2": ("fsdp2", "fsdp2_async"),
    "DeAR": ("dear",),
}
_WORDS = {
    "ddp": "default",
    "ddp_list": "list of sizes",
    "ddp_plan": "weft's plan",
    "fsdp2": "synchronous",
    "fsdp2_async": "asynchronous",
}


def make_row(scenario: Scenario, rate_bits_per_s: float, result: Mapping[str, Any]) -> Row:
    """One row: the frozen fields first, then what helps to understand them."""
    shape = StepShape(**result["shape"])
    measured: Mapping[str, Any] = result["contenders"]
    network_s = median(result["network_s"])
    row: Row = {
        "model": scenario.model,
        "hosts": scenario.num_hosts,
        "emulated_compute": scenario.timed is not None,
        "network_over_compute": round(network_s / shape.compute_s, 3),
    }
    for name in CONTENDERS:
        row[f"{name}_ms"] = _ms(measured[name]["step_s"]) if name in measured else None
    row["bound_ms"] = _ms(barrier_bound_s(shape, scenario.num_hosts, rate_bits_per_s, scenario.workers_per_host))
    for name in (name for name in measured if name not in CONTENDERS):
        row[f"{name}_ms"] = _ms(measured[name]["step_s"])
    row |= {
        "part": scenario.part,
        "ratio_wanted": scenario.ratio,
        "workers_per_host": scenario.workers_per_host,
        "rounds": len(result["network_s"]),
        "network_ms": _ms(network_s),
        "line_rate_network_ms": _ms(2 * half_exchange_s(shape.gradient_bytes, scenario.num_hosts, rate_bits_per_s)),
        "eager_bound_ms": _ms(eager_bound_s(shape, scenario.num_hosts, rate_bits_per_s, scenario.workers_per_host)),
        "forward_ms": _ms(shape.forward_s),
        "backward_ms": _ms(shape.backward_s),
        "update_ms": _ms(shape.update_s),
        "rate_mbit_per_s": round(rate_bits_per_s / 1e6, 1),
        "latency_us": round(result["latency_s"] * 1e6, 1),
        # Time that all workers together spent on cores, in each step.
        "core_ms": {name: _ms(lane["core_s_per_step"]) for name, lane in measured.items()},
        "gradient_bytes": shape.gradient_bytes,
        "ddp_bucket_mb": result["ddp_bucket_mb"] if "ddp_best" in measured else None,
        "dear_bucket_mb": result["dear_bucket_mb"] if "dear" in measured else None,
        "loss_equal": measured["weft"]["loss_equal_to_ddp"] if "weft" in measured else None,
        "weft_eager_loss_equal": measured["weft_eager"]["loss_equal_to_ddp"] if "weft_eager" in measured else None,
        "wire_bytes_per_step": {name: round(lane["wire_bytes_per_step"]) for name, lane in measured.items()},
        # Opened by rank 0 for this contender, besides those of the process group itself.
        "connections": {name: lane.get("num_connections") for name, lane in measured.items()},
        # Those of the process group and its store, which are all that DDP uses.
        "group_connections": result.get("group_connections"),
        "state_bytes": {name: lane["state_bytes"] for name, lane in measured.items()},
        "round_ms": {name: [_ms(seconds) for seconds in lane["round_s"]] for name, lane in measured.items()},
        # Measured after the steps, in processes of their own, once per model and for the largest layout.
        "peak_bytes": {},
        "settled_bytes": {},
        "predicted_ms": predicted_ms(scenario, rate_bits_per_s, shape, result["latency_s"]),
        "plans": {name: lane["plan"] for name, lane in measured.items() if "plan" in lane},
        "tuning_steps": {name: lane["num_tuning_steps"] for name, lane in measured.items() if "plan" in lane},
        # Timed while its plan still changed: such a row says nothing about the tuned system.
        "untuned": [name for name, lane in measured.items() if not lane["is_tuned"]],
    }
    row["weft_faster"] = weft_faster(row)
    return row


def speedup(row: Row, slower: str, faster: str) -> Ratio | None:
    """How many times as fast ``faster`` is, with its interval; None when either was not measured."""
    above, below = row["round_ms"].get(slower), row["round_ms"].get(faster)
    return paired_ratio(above, below) if above and below else None


def weft_faster(row: Row) -> dict[str, list[float]]:
    """How many times as fast weft is as each of the others: ratio, and both ends of its 95 % interval."""
    others = (name for name in row["round_ms"] if not name.startswith("weft") and name != "alone")
    ratios = {name: speedup(row, name, "weft") for name in others}
    return {
        name: [round(value, 3) for value in (ratio.value, ratio.low, min(ratio.high, 1e6))]
        for name, ratio in ratios.items()
        if ratio is not None
    }


def best_of(row: Row, peer: str) -> str | None:
    """The contender with which a peer is fastest in this row; None when it was not measured."""
    names = [name for name in PEERS[peer] if row.get(f"{name}_ms")]
    return min(names, key=lambda name: float(row[f"{name}_ms"]), default=None)


def best_peer(row: Row) -> str | None:
    """The fastest contender that is not weft."""
    names = [name for name in (best_of(row, peer) for peer in PEERS) if name is not None]
    return min(names, key=lambda name: float(row[f"{name}_ms"]), default=None)


def variant(row: Row, name: str) -> str:
    """Which variant of a peer a contender is."""
    sizes = {"ddp_best": row["ddp_bucket_mb"], "dear": row["dear_bucket_mb"]}
    return f"{sizes[name]:g} MB" if sizes.get(name) else _WORDS.get(name, name)


def share_of(row: Row, bound: str, contender: str) -> float | None:
    """A bound over what was reached; None when it was not measured."""
    above, below = row.get(f"{bound}_ms"), row.get(f"{contender}_ms")
    return above / below if above and below else None


MAX_ERROR = 0.1


def error_of(row: Row, name: str) -> float | None:
    """How far the predicted step is from the measured one, as a share of it; None without one of them."""
    said, measured = (row.get("predicted_ms") or {}).get(name), row.get(f"{name}_ms")
    return said / measured - 1 if said and measured else None


def predicted_names(rows: Sequence[Row]) -> list[str]:
    """The contenders that were predicted and measured, but for the one whose time is the prediction's input."""
    names = dict.fromkeys(name for row in rows for name in row.get("predicted_ms") or ())
    return [name for name in names if name != "alone" and any(error_of(row, name) is not None for row in rows)]


def prediction_errors(rows: Sequence[Row]) -> list[str]:
    """How far off ``weft predict`` was, one line per contender; none for rows without a prediction."""
    lines = []
    for name in predicted_names(rows):
        found = [(error, row) for row in rows if (error := error_of(row, name)) is not None]
        worst, row = max(found, key=lambda pair: abs(pair[0]))
        within = sum(abs(error) <= MAX_ERROR for error, _ in found)
        lines.append(
            f"{name.replace('_', ' ')}: predicted within {100 * MAX_ERROR:.0f} % in {within} of {len(found)} rows, "
            f"{100 * fmean(abs(error) for error, _ in found):.0f} % off on average, at worst {100 * worst:+.0f} % "
            f"({row['model']}, {row['hosts']} hosts of {row['workers_per_host']})"
        )
    return lines


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 2)
