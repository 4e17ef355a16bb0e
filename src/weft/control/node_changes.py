"""What has changed about the nodes: the recorded cluster, compared with what the engine sees.  Pure."""

from __future__ import annotations

from collections.abc import Sequence

from weft.core.cluster import Cluster
from weft.core.engine import EngineNode
from weft.core.events import Event, NodeDrained, NodeFailed, NodeJoined, NodeRepaired, NodeResumed


def cluster_of(nodes: Sequence[EngineNode]) -> Cluster:
    """The cluster of a controller that has none yet."""
    kinds = tuple(node.kind for node in nodes)
    names = tuple(node.name for node in nodes)
    return Cluster(tuple(node.num_devices for node in nodes), names=names, kinds=kinds if any(kinds) else ())


def node_changes(cluster: Cluster, nodes: Sequence[EngineNode], now_s: float) -> list[Event]:
    """The events that lead from ``cluster`` to what the engine sees now.

    A node is identified by its name.  One that comes back with a different number of devices is a new node: its old
    devices stay lost, so that a number never means two devices.

    >>> node_changes(Cluster((2,), names=("a",)), [EngineNode("b", 4)], 1.0)
    [NodeFailed(at_s=1.0, node=0), NodeJoined(at_s=1.0, name='b', num_devices=4, kind='')]
    """
    seen = {_own_name(cluster, node): node for node in nodes}
    events: list[Event] = []
    for index, name in enumerate(cluster.node_names):
        node = seen.pop(name, None)
        if node is None:
            if index not in cluster.failed_nodes:
                events.append(NodeFailed(now_s, index))
            continue
        if index in cluster.failed_nodes:
            events.append(NodeRepaired(now_s, index))
        if node.kind != (cluster.kinds[index] if cluster.kinds else ""):
            events.append(NodeJoined(now_s, name, node.num_devices, node.kind))
        events += _notices(cluster, index, node, now_s)
    for number, (name, node) in enumerate(seen.items(), cluster.num_nodes):
        events.append(NodeJoined(now_s, name, node.num_devices, node.kind))
        events += _notices(cluster, number, node, now_s)
    return events


def _notices(cluster: Cluster, index: int, node: EngineNode, now_s: float) -> list[Event]:
    is_leaving = index in cluster.leaving_nodes
    if node.leaves_because and not is_leaving:
        return [NodeDrained(now_s, index, node.leaves_because, is_notice=True)]
    if is_leaving and not node.leaves_because:
        return [NodeResumed(now_s, index, is_notice=True)]
    return []


def _own_name(cluster: Cluster, node: EngineNode) -> str:
    sizes = dict(zip(cluster.node_names, cluster.devices_by_node, strict=True))
    name, number = node.name, 1
    while sizes.get(name, node.num_devices) != node.num_devices:
        number += 1
        name = f"{node.name}~{number}"
    return name
