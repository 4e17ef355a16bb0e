"""Nodes, devices, and where a job's workers are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from weft.errors import UsageError

MAX_DEVICES = 100_000
"""Decisions, placement, and the dashboard iterate over all devices."""
MAX_FORECAST_DEVICES = 10_000

Shape = tuple[int, ...]
"""Workers per node, in node order, without nodes that have none: ``(4, 4, 2)``."""


@dataclass(frozen=True)
class Cluster:
    """Nodes with their devices.  Devices are numbered consecutively: node 0 first, then node 1, ...

    >>> cluster = Cluster.uniform(num_nodes=2, devices_per_node=4)
    >>> cluster.num_devices, cluster.node_of(5), cluster.shape((2, 3, 4))
    (8, 1, (2, 1))
    """

    devices_by_node: tuple[int, ...]
    failed_nodes: frozenset[int] = field(default_factory=frozenset)
    names: tuple[str, ...] = ()
    """One per node, all different; empty for ``node0``, ``node1``, ..."""
    drained_nodes: frozenset[int] = field(default_factory=frozenset)
    """Nodes that an operator has taken out of service: their jobs move away, and no job starts there."""
    leaving_nodes: frozenset[int] = field(default_factory=frozenset)
    """The same for nodes that are about to be taken away, according to the engine (a preemption notice)."""
    kinds: tuple[str, ...] = ()
    """The device kind of each node, such as ``A100``; empty if none is declared."""

    def __post_init__(self) -> None:
        if not self.devices_by_node or min(self.devices_by_node) < 1:
            raise UsageError(
                f"a cluster of nodes with {list(self.devices_by_node)} devices: expected at least one node "
                "and at least one device on each"
            )
        if self.names and len(set(self.names)) != len(self.devices_by_node):
            raise UsageError(f"a cluster with nodes {list(self.names)}: expected a different name for each node")
        if self.kinds and len(self.kinds) != len(self.devices_by_node):
            raise UsageError(
                f"a cluster of {len(self.devices_by_node)} nodes with {len(self.kinds)} device kinds: "
                "expected one kind for each node"
            )
        if sum(self.devices_by_node) > MAX_DEVICES:
            raise UsageError(f"a cluster of {sum(self.devices_by_node)} devices: expected at most {MAX_DEVICES}")

    @classmethod
    def uniform(cls, num_nodes: int, devices_per_node: int) -> Cluster:
        """``num_nodes`` equal nodes."""
        return cls((devices_per_node,) * num_nodes)

    @property
    def num_nodes(self) -> int:
        return len(self.devices_by_node)

    @cached_property
    def num_devices(self) -> int:
        """Devices that can be given to jobs now: all but those of closed nodes."""
        return sum(n for node, n in enumerate(self.devices_by_node) if node not in self.closed_nodes)

    @cached_property
    def closed_nodes(self) -> frozenset[int]:
        """Nodes where nothing may be started."""
        return self.failed_nodes | self.drained_nodes | self.leaving_nodes

    @cached_property
    def node_names(self) -> tuple[str, ...]:
        return self.names or tuple(f"node{node}" for node in range(self.num_nodes))

    @cached_property
    def kind_names(self) -> tuple[str, ...]:
        """The device kinds of all nodes, each once, in the order of the nodes."""
        return tuple(dict.fromkeys(self.kinds)) or ("",)

    @cached_property
    def is_mixed(self) -> bool:
        """Whether there are devices of more than one kind: then a job's speed depends on the kind it runs on."""
        return len(self.kind_names) > 1

    def kind_of(self, devices: Sequence[int]) -> str:
        """The kind of a job's devices, which are all of one kind; empty without devices or declared kinds.

        >>> Cluster((2, 4), kinds=("T4", "A100")).kind_of((3, 4))
        'A100'
        """
        return self.kinds[self.node_of(devices[0])] if self.kinds and devices else ""

    @cached_property
    def by_kind(self) -> Mapping[str, Cluster]:
        """For each kind, the cluster of only its nodes, in their order; its devices are numbered anew."""
        if not self.is_mixed:
            return {self.kind_names[0]: self}
        found = {}
        for kind in self.kind_names:
            nodes = [node for node, other in enumerate(self.kinds) if other == kind]
            found[kind] = Cluster(
                tuple(self.devices_by_node[node] for node in nodes),
                frozenset(place for place, node in enumerate(nodes) if node in self.closed_nodes),
            )
        return found

    @cached_property
    def most_of_one_kind(self) -> int:
        """The largest number of devices that one job can have now: all of its devices are of one kind."""
        return max(part.num_devices for part in self.by_kind.values())

    @cached_property
    def devices_by_kind(self) -> Mapping[str, frozenset[int]]:
        """The numbers of each kind's devices, whether in service or not."""
        found: dict[str, set[int]] = {kind: set() for kind in self.kind_names}
        for device, node in enumerate(self._nodes):
            found[self.kinds[node] if self.kinds else ""].add(device)
        return {kind: frozenset(devices) for kind, devices in found.items()}

    def device_name(self, device: int) -> str:
        """The name of a device as users see it; stays the same as nodes come and go.

        >>> Cluster((2, 4), names=("head", "gpu-7")).device_name(4)
        'gpu-7/2'
        """
        node = self.node_of(device)
        return f"{self.node_names[node]}/{device - self.first_device[node]}"

    @cached_property
    def first_device(self) -> tuple[int, ...]:
        """Number of the first device of each node."""
        first, starts = 0, []
        for num in self.devices_by_node:
            starts.append(first)
            first += num
        return tuple(starts)

    def devices_of(self, node: int) -> range:
        """The devices of ``node``."""
        first = self.first_device[node]
        return range(first, first + self.devices_by_node[node])

    @cached_property
    def _nodes(self) -> tuple[int, ...]:
        return tuple(node for node, num in enumerate(self.devices_by_node) for _ in range(num))

    def node_of(self, device: int) -> int:
        """The node of ``device``."""
        return self._nodes[device]

    def shape(self, devices: Iterable[int]) -> Shape:
        """Workers per node, with one worker on each of ``devices``."""
        counts: dict[int, int] = {}
        nodes = self._nodes
        for device in devices:
            node = nodes[device]
            counts[node] = counts.get(node, 0) + 1
        return tuple(counts[node] for node in sorted(counts))

    def packed_shape(self, num_workers: int) -> Shape:
        """``num_workers`` on as few nodes as possible in an empty cluster."""
        per_node = max(self.devices_by_node)
        full, rest = divmod(num_workers, per_node)
        return (per_node,) * full + ((rest,) if rest else ())

    def without(self, failed_nodes: Iterable[int]) -> Cluster:
        """The same cluster with these nodes out of use."""
        return replace(self, failed_nodes=frozenset(failed_nodes))

    def with_kind(self, name: str, kind: str) -> Cluster:
        """The same cluster with a different kind of devices on this node."""
        known = self.kinds or ("",) * self.num_nodes
        kinds = tuple(kind if name == other else old for other, old in zip(self.node_names, known, strict=True))
        return replace(self, kinds=kinds if any(kinds) else ())

    def joined_by(self, name: str, num_devices: int, kind: str = "") -> Cluster:
        """The same cluster with one more node; its devices are numbered last, so that no other number changes."""
        names = (*self.node_names, name)
        kinds = (*(self.kinds or ("",) * self.num_nodes), kind) if self.kinds or kind else ()
        return replace(self, devices_by_node=(*self.devices_by_node, num_devices), names=names, kinds=kinds)
