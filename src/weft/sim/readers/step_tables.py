"""Measured step times of one application by placement and batch per device.

A placement is the number of devices on each node, in node order.  The data has exact times for all placements on up to
four nodes of four devices, and (nodes, devices) pairs for a few larger node counts.  The rules for everything between
are our own:

* between measured batch sizes: linear; outside: the nearest measured one;
* between measured node counts: linear in the node count, at the same number of devices per node;
* beyond the largest measured node count: as on that many nodes, packed more tightly;
* a node with more devices than any measured one counts as several full nodes, which is pessimistic.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from weft.core.cluster import Shape
from weft.core.speed import StepTime


@dataclass(frozen=True, slots=True)
class BatchCurve:
    """Step times at one placement by batch per device, sorted."""

    local_batches: tuple[int, ...]
    times: tuple[StepTime, ...]

    def at(self, local_batch: float) -> StepTime:
        batches = self.local_batches
        if local_batch <= batches[0]:
            return self.times[0]
        if local_batch >= batches[-1]:
            return self.times[-1]
        right = bisect_left(batches, local_batch)
        share = (local_batch - batches[right - 1]) / (batches[right] - batches[right - 1])
        return _blend(self.times[right - 1], self.times[right], share)


@dataclass(frozen=True)
class StepTable:
    """All measured curves of one application."""

    shapes: Mapping[Shape, BatchCurve]
    nodes_devices: Mapping[tuple[int, int], BatchCurve]
    max_node_devices: int = field(init=False)
    # node count -> its measured device counts, sorted; for small counts taken from placements
    _grid: Mapping[int, Sequence[tuple[int, BatchCurve]]] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "max_node_devices", max(max(shape) for shape in self.shapes))
        grid: dict[int, dict[int, BatchCurve]] = {}
        for shape, curve in sorted(self.shapes.items(), key=lambda item: _imbalance(item[0])):
            grid.setdefault(len(shape), {}).setdefault(sum(shape), curve)
        for (num_nodes, num_devices), curve in self.nodes_devices.items():
            grid.setdefault(num_nodes, {})[num_devices] = curve
        object.__setattr__(self, "_grid", {nodes: sorted(row.items()) for nodes, row in sorted(grid.items())})

    @property
    def max_devices(self) -> int:
        """The largest measured number of devices."""
        return max(row[-1][0] for row in self._grid.values())

    @property
    def local_batches(self) -> tuple[int, ...]:
        """Every batch per device measured on some placement, sorted."""
        return tuple(sorted({batch for curve in self.shapes.values() for batch in curve.local_batches}))

    def shapes_of(self, num_devices: int) -> list[Shape]:
        """Shapes whose step times include those of every shape with ``num_devices``."""
        measured = [shape for shape in self.shapes if sum(shape) == num_devices]
        most_nodes = min(num_devices, max(self._grid))
        fewest_nodes = max(math.ceil(num_devices / self.max_node_devices), max(map(len, self.shapes)) + 1)
        # Beyond the exactly measured placements, only the numbers of nodes and devices count.
        return measured + [even_shape(num_devices, n) for n in range(fewest_nodes, most_nodes + 1)]

    def at(self, shape: Shape, local_batch: float) -> StepTime:
        shape = canonical(self._split_large_nodes(shape))
        curve = self.shapes.get(shape)
        if curve is not None:
            return curve.at(local_batch)
        return self._between_nodes(len(shape), sum(shape), local_batch)

    def _split_large_nodes(self, shape: Shape) -> Shape:
        limit = self.max_node_devices
        if all(count <= limit for count in shape):
            return shape
        parts: list[int] = []
        for count in shape:
            full, rest = divmod(count, limit)
            parts += [limit] * full + [rest] * (rest > 0)
        return tuple(parts)

    def _between_nodes(self, num_nodes: int, num_devices: int, local_batch: float) -> StepTime:
        known = list(self._grid)
        right = bisect_left(known, num_nodes)
        if right == len(known):
            return self._on_row(known[-1], num_devices, local_batch)
        if known[right] == num_nodes or right == 0:
            return self._on_row(known[right], num_devices, local_batch)
        few, many = known[right - 1], known[right]
        devices_per_node = num_devices / num_nodes
        share = (num_nodes - few) / (many - few)
        low = self._on_row(few, devices_per_node * few, local_batch)
        return _blend(low, self._on_row(many, devices_per_node * many, local_batch), share)

    def _on_row(self, num_nodes: int, num_devices: float, local_batch: float) -> StepTime:
        row = self._grid[num_nodes]
        right = bisect_left(row, num_devices, key=lambda item: item[0])
        if right == len(row):
            return row[-1][1].at(local_batch)
        if right == 0 or row[right][0] == num_devices:
            return row[right][1].at(local_batch)
        (few, low), (many, high) = row[right - 1], row[right]
        return _blend(low.at(local_batch), high.at(local_batch), (num_devices - few) / (many - few))


def canonical(shape: Shape) -> Shape:
    """The smallest rotation of the nodes in use: a ring has no first node.

    >>> canonical((4, 0, 2, 1))
    (1, 4, 2)
    """
    used = tuple(count for count in shape if count)
    return min((used[i:] + used[:i] for i in range(len(used))), default=())


def even_shape(num_devices: int, num_nodes: int) -> Shape:
    """``num_devices`` spread over ``num_nodes`` as evenly as possible."""
    each, rest = divmod(num_devices, num_nodes)
    return (each,) * (num_nodes - rest) + (each + 1,) * rest


def _imbalance(shape: Shape) -> tuple[int, Shape]:
    """Sorts the most even placement of a device count first: it represents that count."""
    return max(shape) - min(shape), shape


def _blend(one: StepTime, other: StepTime, share: float) -> StepTime:
    """Linear interpolation; ``share`` = 1 is the other one."""
    keep = 1.0 - share
    return StepTime(keep * one.step_s + share * other.step_s, keep * one.exposed_s + share * other.exposed_s)
