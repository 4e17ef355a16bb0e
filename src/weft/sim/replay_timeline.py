"""A replay as a timeline for Perfetto: one row per GPU, one bar per job and stay."""

from __future__ import annotations

from collections.abc import Iterator

from weft.core.chrome_trace import Span
from weft.core.cluster import Cluster
from weft.sim.result import SimulationResult


def timeline(result: SimulationResult, cluster: Cluster) -> Iterator[Span]:
    """Bars in order of device, then time; two jobs that take turns have a row each."""
    bars = [(device, span.start_s, span) for span in result.spans for device in span.devices]
    for device, _, span in sorted(bars, key=lambda bar: (bar[0], bar[1], bar[2].job)):
        # Of two jobs on one device the name decides who is drawn on the second row: same order every time.
        second = span.partner is not None and span.job > span.partner
        node = cluster.node_of(device)
        args = {"job": span.job, "workers": len(span.devices)}
        if span.partner:
            args["partner"] = span.partner
        yield Span(
            f"{result.policy}: node {node}",
            f"gpu {device}{' (shared)' if second else ''}",
            span.job,
            span.start_s,
            span.end_s - span.start_s,
            args,
        )
