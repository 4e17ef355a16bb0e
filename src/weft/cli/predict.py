"""``weft predict``: step times on another cluster, predicted by the step model."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from weft.cli.render import Column, number, print_json, print_table
from weft.cli.verb import Json
from weft.core.command_line import Option
from weft.core.plural import plural
from weft.errors import InputError, UsageError

if TYPE_CHECKING:
    from weft.perf.prediction import Predicted, TargetCluster
    from weft.perf.step_profile import StepProfile

# Samples per worker and sustained operations per second of a device: our assumptions if none are given.
BATCH = 32
TFLOPS = 10.0
NAMES = "resnet50, densenet201, inception-v4, bert-base, bert-large"
MAX_TRACE_BYTES = 1 << 30

COLUMNS = (
    Column("contender", "contender"),
    Column("step_ms", "step ms", number(1), min),
    Column("exposed_ms", "exposed ms", number(1)),
    Column("bound_ms", "bound ms", number(1)),
    Column("buckets", "buckets", number(0)),
    Column("speedup_over_ddp", "vs ddp", lambda ratio: f"{ratio:.2f}x"),
    Column("efficiency", "of compute alone", lambda share: f"{share:.0%}"),
)
_UNITS = {"k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}
# A capital B means bytes, which a rate in bits must not be taken for.
_RATE = re.compile(r"(?P<value>\d+(\.\d+)?)\s*(?P<unit>[kmgtKMGT])((?i:bit(/s)?)|b/s|bps)")


def predict(
    profile: Annotated[
        str, Option(f"{NAMES}; or a trace written by handle.trace", "required", metavar="NAME|TRACE.json")
    ] = "",
    workers: Annotated[int | None, Option("total number of workers", "required", min=1)] = None,
    link: Annotated[str, Option("rate of each host's link, such as 10gbit", "required", metavar="RATE")] = "",
    workers_per_host: Annotated[int, Option("workers that share a host and its link", min=1)] = 1,
    compute_ms: Annotated[
        float | None,
        Option(
            "forward and backward of one step on one device", f"{BATCH} samples at {TFLOPS:g} TFLOP/s; a trace's own"
        ),
    ] = None,
    latency_us: Annotated[float, Option("one-way latency between two hosts")] = 30.0,
    as_json: Json = False,
) -> None:
    """Predict step times of DDP, DeAR, and weft on a cluster you describe, with bounds.

    Nothing is measured: the answer comes from the same step model that weft uses for planning. "exposed" is the time
    compute waits for the network; "bound" is a lower bound for every bucket plan of that kind. docs/overlap.md lists
    the assumptions about compute and links.
    """
    from weft.perf.prediction import TargetCluster
    from weft.perf.prediction import predict as predicted

    if not profile or workers is None or not link:
        raise UsageError(
            "weft predict needs --profile, --workers, and --link: for example "
            "`weft predict --profile resnet50 --workers 64 --link 10gbit`"
        )
    cluster = TargetCluster(workers, workers_per_host, rate_bits_per_s(link), latency_us * 1e-6)
    step = _step(profile, compute_ms)
    rows = _rows(predicted(step, cluster))
    if as_json:
        print_json({"profile": profile, **_described(step, cluster), "rows": rows})
        return
    where = f"{plural(workers, 'worker')}, {plural(cluster.num_hosts, 'host')}, {link}"
    title = f"{profile}: {step.num_elements / 1e6:.1f} M parameters on {where} (predicted)"
    print_table(rows, COLUMNS, title=title)


def rate_bits_per_s(text: str) -> float:
    """
    >>> rate_bits_per_s("10gbit"), rate_bits_per_s("234 Mb/s")
    (10000000000.0, 234000000.0)
    """
    match = _RATE.fullmatch(text.strip())
    if match is None or float(match["value"]) <= 0:
        raise UsageError(f"--link {text[:80]}: expected a rate in bits per second such as 10gbit, 234mbit, or 1.5gbit")
    return float(match["value"]) * _UNITS[match["unit"].lower()]


def _step(profile: str, compute_ms: float | None) -> StepProfile:
    from weft.core.nearest_name import unknown_name
    from weft.perf.layer_profile import PROFILES, known_profile, profile_of_trace

    if compute_ms is not None and not 0 < compute_ms < 1e9:
        raise UsageError(f"--compute-ms {compute_ms:g}: expected milliseconds above 0")
    if profile in PROFILES:
        layers = known_profile(profile)
        compute_s = layers.compute_s(BATCH, TFLOPS * 1e12) if compute_ms is None else compute_ms / 1e3
        return layers.step(compute_s)
    file = Path(profile)
    if not file.exists():
        raise UsageError(f"--profile: {unknown_name('trace file or profile', profile, list(PROFILES))}")
    from weft.cli.trace import read_spans

    if file.stat().st_size > MAX_TRACE_BYTES:
        raise InputError(f"is larger than {MAX_TRACE_BYTES >> 20} MB: record fewer steps", file=profile)
    try:
        traced = profile_of_trace(read_spans(file))
    except UsageError as error:
        raise error if isinstance(error, InputError) else InputError(str(error), file=profile) from error
    return traced if compute_ms is None else _scaled(traced, compute_ms / 1e3)


def _scaled(profile: StepProfile, compute_s: float) -> StepProfile:
    from dataclasses import replace

    factor = compute_s / (profile.forward_s + profile.backward_s)
    timings = tuple(replace(p, ready_s=p.ready_s * factor, read_s=p.read_s * factor) for p in profile.parameters)
    return replace(
        profile, parameters=timings, forward_s=profile.forward_s * factor, backward_s=profile.backward_s * factor
    )


def _described(step: StepProfile, cluster: TargetCluster) -> dict[str, Any]:
    return {
        "predicted": True,
        "parameters": step.num_elements,
        "forward_ms": step.forward_s * 1e3,
        "backward_ms": step.backward_s * 1e3,
        "workers": cluster.num_workers,
        "hosts": cluster.num_hosts,
        "link_bits_per_s": cluster.link_bits_per_s,
        "latency_us": cluster.latency_s * 1e6,
    }


def _rows(found: Sequence[Predicted]) -> list[dict[str, Any]]:
    alone_s = found[0].step_s
    ddp_s = next(row.step_s for row in found if row.contender == "ddp")
    return [
        {
            "contender": row.contender,
            "step_ms": row.step_s * 1e3,
            "exposed_ms": row.exposed_s * 1e3,
            "bound_ms": row.bound_s * 1e3,
            "buckets": row.num_buckets,
            "speedup_over_ddp": ddp_s / row.step_s,
            "efficiency": alone_s / row.step_s,
        }
        for row in found
    ]
