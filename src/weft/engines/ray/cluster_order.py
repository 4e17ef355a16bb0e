"""One attempt on several nodes: which workers run where, and how it ended once every part has.  Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from weft.core.engine import StartOrder
from weft.core.events import Fate
from weft.core.worker_environment import STOPPED_EXIT_CODE
from weft.engines.first_failure import PEER_IS_GONE
from weft.engines.local.records import Status
from weft.errors import EngineError


@dataclass(frozen=True, slots=True)
class RayNode:
    """A node of the Ray cluster that weft can use; ``node_id`` is new each time Ray is started on it."""

    node_id: str
    name: str
    address: str
    num_devices: int
    resource: str = "CPU"
    """What Ray calls its devices: CPU or GPU."""
    leaves_because: str = ""
    kind: str = ""
    """The kind of its devices, if Ray knows it."""


@dataclass(frozen=True, slots=True)
class NodePart:
    """The workers of an attempt that run on one node."""

    node_id: str
    node: str
    address: str
    resource: str
    devices: tuple[int, ...]
    """Numbered from 0 on this node."""
    first_rank: int


@dataclass(frozen=True, slots=True)
class ClusterOrder:
    """Everything needed to start an attempt, and to find it again."""

    job_id: str
    attempt: int
    argv: tuple[str, ...]
    cwd: str
    environment: Mapping[str, str]
    parts: tuple[NodePart, ...]
    shares_with: str = ""
    """The name of an attempt that has these devices reserved; this one takes turns with it."""

    @property
    def name(self) -> str:
        """Of its owner and of its placement group."""
        return f"{self.job_id}@{self.attempt}"

    @property
    def num_workers(self) -> int:
        return sum(len(part.devices) for part in self.parts)

    @property
    def device_keys(self) -> frozenset[tuple[str, int]]:
        """Its devices, by node id and number on that node."""
        return frozenset((part.node_id, device) for part in self.parts for device in part.devices)

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "environment": dict(self.environment)}

    @staticmethod
    def from_json(document: Mapping[str, Any]) -> ClusterOrder:
        parts = tuple(NodePart(**{**part, "devices": tuple(part["devices"])}) for part in document["parts"])
        return ClusterOrder(**{**document, "argv": tuple(document["argv"]), "parts": parts})


def cluster_order(order: StartOrder, nodes: Mapping[str, RayNode]) -> ClusterOrder:
    """The order, with its devices located on the current nodes; ranks follow the order of the devices."""
    devices: dict[str, list[int]] = {}
    for name in order.device_names:
        node, _, number = name.rpartition("/")
        devices.setdefault(node, []).append(int(number))
    parts: list[NodePart] = []
    first_rank = 0
    for name, numbers in devices.items():
        found = nodes.get(name)
        if found is None or max(numbers) >= found.num_devices:
            raise EngineError(f"node {name} is no longer part of the Ray cluster")
        parts.append(NodePart(found.node_id, name, found.address, found.resource, tuple(numbers), first_rank))
        first_rank += len(numbers)
    if not parts:
        raise EngineError(f"job {order.job_id} was given no devices: expected one or more")
    environment = {**order.launch.environment, **order.environment}
    return ClusterOrder(order.job_id, order.attempt, order.launch.argv, order.launch.cwd, environment, tuple(parts))


def joined(parts: Sequence[tuple[str, Status]]) -> Status:
    """The status of the attempt, given its parts by node: it has started, or ended, when all of them have.

    A lost node outweighs the failures it caused on other nodes, and a failure outweighs the parts that were stopped
    because of it.
    """
    moments = [status.started_s for _, status in parts]
    started_s = None if None in moments else max(moment for moment in moments if moment is not None)
    if any(status.fate is None for _, status in parts):
        return Status(started_s=started_s)
    by_fate = {fate: [(node, status) for node, status in parts if status.fate is fate] for fate in Fate}
    if by_fate[Fate.LOST]:
        chosen = by_fate[Fate.LOST][0]
    elif by_fate[Fate.FAILED]:
        chosen = min(by_fate[Fate.FAILED], key=_as_a_cause)
    elif by_fate[Fate.STOPPED]:
        unsaved = [part for part in by_fate[Fate.STOPPED] if part[1].exit_code not in (0, STOPPED_EXIT_CODE)]
        chosen = (unsaved or by_fate[Fate.STOPPED])[0]
    else:
        chosen = parts[0]
    node, status = chosen
    return Status(
        started_s=started_s,
        finished_s=max(part.finished_s or 0.0 for _, part in parts),
        fate=status.fate,
        exit_code=status.exit_code,
        reason=f"{status.reason} (node {node})" if status.reason and len(parts) > 1 else status.reason,
    )


def _as_a_cause(part: tuple[str, Status]) -> tuple[bool, float]:
    """Workers that lose a peer fail too, sometimes before the failure that caused it is recorded."""
    _, status = part
    return PEER_IS_GONE.search(status.reason) is not None, status.finished_s or 0.0
