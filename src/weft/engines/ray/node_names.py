"""Names of nodes that stay the same as long as a node is alive, and are never given to two nodes.  Pure."""

from __future__ import annotations

from collections.abc import Mapping

STALE_S = 60.0
"""Longer than Ray takes to give up on a node that is gone."""


class NodeNames:
    """A restarted node has its old name, but Ray may still believe that the old node is alive.

    So a node whose name is taken has to wait until the other one is gone, but at most :data:`STALE_S`.  After that they
    are two nodes, and part of its id is added to the newer one's name.
    """

    def __init__(self) -> None:
        self._given: dict[str, str] = {}
        self._seen_s: dict[str, float] = {}

    def names(self, wanted: Mapping[str, str], now_s: float) -> dict[str, str]:
        """The names of these nodes, by node id, without those that have to wait.

        >>> nodes = NodeNames()
        >>> nodes.names({"1a": "gpu-7"}, 0.0), nodes.names({"1a": "gpu-7", "2b": "gpu-7"}, 1.0)
        ({'1a': 'gpu-7'}, {'1a': 'gpu-7'})
        >>> nodes.names({"2b": "gpu-7"}, 9.0)
        {'2b': 'gpu-7'}
        """
        self._seen_s = {node_id: self._seen_s.get(node_id, now_s) for node_id in wanted}
        self._given = {node_id: name for node_id, name in self._given.items() if node_id in wanted}
        for node_id, name in wanted.items():
            if node_id not in self._given:
                if name not in self._given.values():
                    self._given[node_id] = name
                elif now_s - self._seen_s[node_id] >= STALE_S:
                    self._given[node_id] = f"{name}-{node_id[:6]}"
        return dict(self._given)
