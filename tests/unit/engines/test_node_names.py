"""Nodes keep their names, whatever Ray believes about nodes that are gone."""

from __future__ import annotations

from weft.engines.ray.node_names import STALE_S, NodeNames


def test_a_node_that_restarts_before_ray_notices_keeps_its_name() -> None:
    nodes = NodeNames()
    assert nodes.names({"old": "a"}, 0.0) == {"old": "a"}
    assert nodes.names({"new": "a", "old": "a"}, 1.0) == {"old": "a"}
    assert nodes.names({"new": "a"}, 2.0) == {"new": "a"}


def test_two_nodes_with_the_same_name_are_distinguished_and_neither_is_renamed() -> None:
    nodes = NodeNames()
    both = {"0123456789": "a", "abcdef0123": "a"}
    assert nodes.names(both, 0.0) == {"0123456789": "a"}
    assert nodes.names(both, STALE_S) == {"0123456789": "a", "abcdef0123": "a-abcdef"}
    assert nodes.names({"abcdef0123": "a"}, STALE_S + 1) == {"abcdef0123": "a-abcdef"}
