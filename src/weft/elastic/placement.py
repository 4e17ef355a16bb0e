"""Which devices: node-aligned, packed, and with as few moves as possible.

Jobs that keep their size stay where they are, and the others are fitted into the gaps.  If a job that fits on one node
would be split, as few others as possible are moved into gaps elsewhere.  Only if that is impossible is the whole
cluster repacked; the packed nodes are then matched to the real ones so that most workers stay where they were (an
assignment problem).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

import numpy as np

from weft.core.cluster import Cluster
from weft.elastic.assignment_problem import best_assignment
from weft.errors import UsageError

Devices = tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Unit:
    """What is placed as a whole: a job, or two that share devices.  Compared by identity: it is used as a key."""

    names: tuple[str, ...]
    workers: int
    kind: str = ""
    """The device kind it gets, in a cluster of several."""


def place(
    cluster: Cluster, units: Sequence[Unit], current: Mapping[str, Devices], *, taken: Set[int] = frozenset()
) -> dict[str, Devices]:
    """Devices for every job of ``units``; jobs of one unit get the same ones, and no device goes to two units.

    ``current`` says where jobs are now; ``taken`` devices are not used.

    >>> cluster = Cluster.uniform(num_nodes=2, devices_per_node=2)
    >>> place(cluster, [Unit(("a",), 1), Unit(("b",), 2)], {"a": (2,)})
    {'a': (2,), 'b': (0, 1)}
    """
    if cluster.is_mixed:
        return _placed_by_kind(cluster, units, current, taken)
    if taken:
        return _placed_around(cluster, units, current, taken)
    num_workers = sum([unit.workers for unit in units])
    if num_workers > cluster.num_devices:
        raise UsageError(f"{num_workers} workers for {cluster.num_devices} devices: an allocation must fit the cluster")
    placed: dict[Unit, Devices] = {}
    waiting: list[Unit] = []
    used = _out_of_use(cluster)
    for unit in units:
        for name in unit.names:
            devices = current.get(name, ())
            if len(devices) == unit.workers and used.isdisjoint(devices):
                used.update(devices)
                placed[unit] = devices
                break
        else:
            waiting.append(unit)
    if not waiting:
        return {name: placed[unit] for unit in units for name in unit.names}
    free = _free(cluster, used)
    waiting.sort(key=lambda unit: -unit.workers)
    for unit in waiting:
        if _splits_needlessly(cluster, unit, free) and not _evacuate(cluster, unit, placed, free):
            placed = _repacked(cluster, units, current)
            break
        placed[unit] = _take(free, unit.workers)
    return {name: placed[unit] for unit in units for name in unit.names}


def _placed_by_kind(
    cluster: Cluster, units: Sequence[Unit], current: Mapping[str, Devices], taken: Set[int]
) -> dict[str, Devices]:
    """Each kind separately: a unit's devices are all of one kind."""
    placed: dict[str, Devices] = {}
    everything = frozenset().union(*cluster.devices_by_kind.values())
    for kind, devices in cluster.devices_by_kind.items():
        here = [unit for unit in units if unit.kind == kind]
        placed |= _placed_around(cluster, here, current, taken | (everything - devices))
    return {name: placed[name] for unit in units for name in unit.names}


def _placed_around(
    cluster: Cluster, units: Sequence[Unit], current: Mapping[str, Devices], taken: Set[int]
) -> dict[str, Devices]:
    """Place units on the cluster without ``taken``, with its remaining devices numbered from 0."""
    free = [sorted(devices) for devices in _free(cluster, _out_of_use(cluster) | taken).values()]
    real = [device for devices in free for device in devices]
    if not units or not real:
        num_workers = sum([unit.workers for unit in units])
        if num_workers:
            raise UsageError(f"{num_workers} workers, but no device is free: an allocation must fit the cluster")
        return {}
    number = {device: index for index, device in enumerate(real)}
    here = {
        name: tuple(number[device] for device in devices)
        for name, devices in current.items()
        if all(device in number for device in devices)
    }
    placed = place(Cluster(tuple(len(devices) for devices in free if devices)), units, here)
    return {name: tuple(real[index] for index in indexes) for name, indexes in placed.items()}


def _splits_needlessly(cluster: Cluster, unit: Unit, free: Mapping[int, set[int]]) -> bool:
    """Whether a unit that fits on one node finds no node with enough room.

    Larger units span nodes anyway: one more node costs them less than a move would cost the others.
    """
    return max(map(len, free.values())) < unit.workers <= max(cluster.devices_by_node)


def _evacuate(cluster: Cluster, unit: Unit, placed: dict[Unit, Devices], free: dict[int, set[int]]) -> bool:
    """Make room for ``unit`` on one node by moving the fewest other units into gaps elsewhere."""
    lodgers: dict[int, list[Unit]] = {}
    for other, devices in placed.items():
        node = cluster.node_of(devices[0])
        if other.workers <= cluster.devices_by_node[node] and node == cluster.node_of(devices[-1]):
            lodgers.setdefault(node, []).append(other)
    best: tuple[tuple[int, int, int], list[tuple[Unit, int]]] | None = None
    for node, others in lodgers.items():
        need = unit.workers - len(free[node])
        if need > sum(other.workers for other in others):
            continue
        moves = _moves_off(node, need, others, free)
        if moves is not None:
            cost = (len(moves), sum(other.workers for other, _ in moves), node)
            if best is None or cost < best[0]:
                best = (cost, moves)
    if best is None:
        return False
    for other, target in best[1]:
        devices = placed[other]
        free[cluster.node_of(devices[0])].update(devices)
        placed[other] = tuple(sorted(free[target])[: other.workers])
        free[target].difference_update(placed[other])
    return True


def _moves_off(
    node: int, need: int, others: Sequence[Unit], free: Mapping[int, set[int]]
) -> list[tuple[Unit, int]] | None:
    """Units to move from ``node``, and where to, so that ``need`` devices come free there, if possible."""
    room = {other: len(devices) for other, devices in free.items() if other != node and devices}
    moves: list[tuple[Unit, int]] = []
    left = sorted(others, key=lambda unit: (unit.workers, unit.names))
    while need > 0:
        if not left:
            return None
        enough = next((index for index, unit in enumerate(left) if unit.workers >= need), len(left) - 1)
        unit = left.pop(enough)
        fitting = [other for other, space in room.items() if space >= unit.workers]
        if not fitting:
            continue
        target = min(fitting, key=lambda other: (room[other], other))
        room[target] -= unit.workers
        need -= unit.workers
        moves.append((unit, target))
    return moves


def _out_of_use(cluster: Cluster) -> set[int]:
    used: set[int] = set()
    for node in cluster.closed_nodes:
        first = cluster.first_device[node]
        used.update(range(first, first + cluster.devices_by_node[node]))
    return used


def _free(cluster: Cluster, used: set[int]) -> dict[int, set[int]]:
    """Free devices by node, without nodes that are out of service."""
    return {
        node: set(range(first, first + num)) - used
        for node, (first, num) in enumerate(zip(cluster.first_device, cluster.devices_by_node, strict=True))
        if node not in cluster.closed_nodes
    }


def _take(free: dict[int, set[int]], num: int) -> Devices:
    """``num`` free devices on few nodes: the fullest nodes first, the last node as tight as possible."""
    taken: list[int] = []
    while num:
        tightest, tightest_room = -1, 0
        fullest, fullest_room = -1, 0
        for node, devices in free.items():
            room = len(devices)
            if room >= num:
                if tightest < 0 or room < tightest_room:
                    tightest, tightest_room = node, room
            elif room > fullest_room:
                fullest, fullest_room = node, room
        node = fullest if tightest < 0 else tightest
        picked = sorted(free[node])[:num]
        free[node].difference_update(picked)
        taken.extend(picked)
        num -= len(picked)
    return tuple(sorted(taken))


def _repacked(cluster: Cluster, units: Sequence[Unit], current: Mapping[str, Devices]) -> dict[Unit, Devices]:
    """All units repacked, large ones first; each packed node becomes the real one with which it overlaps most."""
    nodes = [node for node in range(cluster.num_nodes) if node not in cluster.closed_nodes]
    home = {unit: _home(cluster, unit, current) for unit in units}
    # Neighbors stay neighbors: equal sizes are packed in the order of where they are now.
    order = sorted(units, key=lambda unit: (-unit.workers, home[unit], unit.names))
    room = {slot: cluster.devices_by_node[node] for slot, node in enumerate(nodes)}
    parts: dict[Unit, list[tuple[int, int]]] = {}
    for unit in order:
        parts[unit] = []
        left = unit.workers
        while left:
            fitting = [slot for slot, space in room.items() if space >= left]
            if fitting:
                slot = min(fitting, key=lambda slot: (room[slot], slot))
            else:
                slot = max(room, key=lambda slot: (room[slot], -slot))
            num = min(left, room[slot])
            parts[unit].append((slot, num))
            room[slot] -= num
            left -= num
    overlap = np.zeros((len(nodes), len(nodes)))
    column = {node: index for index, node in enumerate(nodes)}
    for unit, pieces in parts.items():
        for name in unit.names:
            held = current.get(name, ())
            if len(held) != unit.workers:
                continue
            for device in held:
                if (node := cluster.node_of(device)) in column:
                    for slot, num in pieces:
                        overlap[slot, column[node]] += num / len(held)
    for slot, node in enumerate(nodes):  # a packed node fits only a real one of at least its size
        too_small = [column[other] for other in nodes if cluster.devices_by_node[other] < cluster.devices_by_node[node]]
        overlap[slot, too_small] = -1e6
    node_of_slot = {slot: nodes[index] for slot, index in enumerate(best_assignment(overlap))}
    return _assigned(cluster, order, parts, node_of_slot, current)


def _assigned(
    cluster: Cluster,
    order: Sequence[Unit],
    parts: Mapping[Unit, list[tuple[int, int]]],
    node_of_slot: Mapping[int, int],
    current: Mapping[str, Devices],
) -> dict[Unit, Devices]:
    """Real devices for packed units; a unit that ends up on its current node keeps its devices."""
    placed: dict[Unit, Devices] = {}
    used = _out_of_use(cluster)
    for unit in order:
        wanted = {node_of_slot[slot]: num for slot, num in parts[unit]}
        for name in unit.names:
            devices = current.get(name, ())
            held = Counter(cluster.node_of(device) for device in devices)
            if held == wanted and used.isdisjoint(devices):
                placed[unit] = devices
                used.update(devices)
                break
    free = _free(cluster, used)
    for unit in order:
        if unit in placed:
            continue
        taken: list[int] = []
        for slot, num in parts[unit]:
            node = node_of_slot[slot]
            devices = tuple(sorted(free[node])[:num])
            free[node].difference_update(devices)
            taken.extend(devices)
        placed[unit] = tuple(sorted(taken))
    return placed


def _home(cluster: Cluster, unit: Unit, current: Mapping[str, Devices]) -> int:
    held = next((current[name] for name in unit.names if current.get(name)), ())
    return cluster.node_of(held[0]) if held else cluster.num_nodes
