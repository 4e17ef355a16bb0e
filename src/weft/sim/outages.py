"""Node failures and repairs, drawn from the seed so that a replay can be repeated."""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterator
from dataclasses import dataclass

from weft.core.cluster import Cluster
from weft.sim.replay_options import SimulationOptions


@dataclass(frozen=True, slots=True)
class NodeOutage:
    """A node fails, or is repaired."""

    time_s: float
    node: int
    down: bool


def outages(cluster: Cluster, options: SimulationOptions) -> Iterator[NodeOutage]:
    """An endless sequence of failures and repairs in order of time; empty if nodes never fail."""
    if not options.node_mtbf_s:
        return
    draw = random.Random(f"outages {options.seed}")
    heap = [(draw.expovariate(1 / options.node_mtbf_s), node, True) for node in range(cluster.num_nodes)]
    heapq.heapify(heap)
    while True:
        time_s, node, down = heapq.heappop(heap)
        yield NodeOutage(time_s, node, down)
        pause_s = options.node_repair_s if down else draw.expovariate(1 / options.node_mtbf_s)
        heapq.heappush(heap, (time_s + pause_s, node, not down))
