"""Nodes that join, leave, and are drained: what that means for the jobs on them, and for their devices' names."""

from __future__ import annotations

import pytest
from tests.unit.control.scenario import Scenario, asks_for_decision
from tests.unit.control.test_decision import Answer, decided

from weft.control.node_changes import cluster_of, node_changes
from weft.control.reducer import reduce
from weft.control.state import JobState, State
from weft.core.actions import KillWorkers, StartWorkers, StopWorkers
from weft.core.cluster import Cluster
from weft.core.engine import EngineNode
from weft.core.events import Event, Fate, NodeDrained, NodeFailed, NodeJoined, NodeRepaired, NodeResumed

A, B = EngineNode("a", 2), EngineNode("b", 4)


def test_a_node_that_joins_is_used_and_renames_no_device() -> None:
    one = Scenario("a")
    one.assign(a=(4, 5))
    before = [one.state.cluster.device_name(device) for device in range(8)]
    assert asks_for_decision(one.feed(NodeJoined(one.now_s, "gpu-7", 2)))
    cluster = one.state.cluster
    assert [cluster.device_name(device) for device in range(10)] == [*before, "gpu-7/0", "gpu-7/1"]
    assert one.assign(a=(8, 9)) == (StopWorkers("a", 1),)
    assert one.feed(NodeJoined(one.now_s, "gpu-7", 2)) == (), "it has joined already"


def test_jobs_on_a_drained_node_keep_running_until_they_move() -> None:
    one = Scenario("a", "b")
    one.assign(a=(0, 1), b=(4, 5))
    actions = one.feed(NodeDrained(one.now_s, 0))
    assert asks_for_decision(actions)
    assert not any(isinstance(action, StopWorkers | KillWorkers) for action in actions)
    moved = decided(one, Answer({"a": 2, "b": 2})).event
    assert moved.devices["b"] == (4, 5)
    assert set(moved.devices["a"]) == {6, 7}
    assert one.feed(moved) == (StopWorkers("a", 1),)
    assert one.exit("a", Fate.STOPPED, exit_code=75) == (StartWorkers("a", 2, (6, 7)),)


def test_a_job_that_cannot_resume_stays_on_a_drained_node_until_it_ends() -> None:
    one = Scenario("a", "b")
    one.assign(a=(0, 1))
    one.feed(NodeDrained(one.now_s, 0))
    result = decided(one, Answer({"b": 4}), untouchable={"a"})
    assert result.snapshot.num_devices == 4, "the policy sees only devices that can be given"
    assert result.event.devices == {"a": (0, 1), "b": (4, 5, 6, 7)}
    assert one.feed(result.event) == (StartWorkers("b", 1, (4, 5, 6, 7)),)
    assert one.where("a") is JobState.RUNNING


def test_no_job_is_placed_on_a_drained_node_until_it_is_resumed() -> None:
    one = Scenario("a")
    one.feed(NodeDrained(one.now_s, 0))
    assert one.assign(a=(0,)) == ()
    assert asks_for_decision(one.feed(NodeResumed(one.now_s, 0)))
    assert one.assign(a=(0,)) == (StartWorkers("a", 1, (0,)),)


def test_a_job_moving_to_a_node_that_is_drained_is_called_back() -> None:
    one = Scenario("a")
    one.assign(a=(4,))
    one.assign(a=(0, 1))
    one.feed(NodeDrained(one.now_s, 0))
    one.exit("a", Fate.STOPPED, exit_code=75)
    assert one.where("a") is JobState.PENDING


def test_an_operator_and_the_engine_drain_independently() -> None:
    one = Scenario("a")
    one.feed(NodeDrained(one.now_s, 0))
    one.feed(NodeDrained(one.now_s, 0, "spot instance", is_notice=True))
    one.feed(NodeResumed(one.now_s, 0, is_notice=True))
    assert one.state.cluster.closed_nodes == {0}, "the operator has not resumed it"
    one.feed(NodeResumed(one.now_s, 0))
    assert not one.state.cluster.closed_nodes


def test_a_lost_node_that_comes_back_is_no_longer_about_to_leave_but_still_drained() -> None:
    one = Scenario("a")
    one.feed(NodeDrained(one.now_s, 0, "spot instance", is_notice=True))
    one.feed(NodeFailed(one.now_s, 0))
    one.feed(NodeRepaired(one.now_s, 0))
    assert not one.state.cluster.closed_nodes
    one.feed(NodeDrained(one.now_s, 1))
    one.feed(NodeFailed(one.now_s, 1))
    one.feed(NodeRepaired(one.now_s, 1))
    assert one.state.cluster.closed_nodes == {1}


@pytest.mark.parametrize(
    "event", [NodeDrained(3.0, 7), NodeDrained(3.0, -1), NodeResumed(3.0, 0), NodeJoined(3.0, "x", 0)]
)
def test_impossible_news_of_nodes_changes_nothing(event: Event) -> None:
    one = Scenario("a")
    before = one.state
    assert one.feed(event) == ()
    assert (one.state.cluster, one.state.jobs) == (before.cluster, before.jobs)


def after(cluster: Cluster, *nodes: EngineNode) -> Cluster:
    """The cluster once everything the engine sees is in the journal; seen again, nothing is new."""
    state = State(cluster)
    for event in node_changes(cluster, nodes, 1.0):
        state, _ = reduce(state, event)
    assert node_changes(state.cluster, nodes, 2.0) == []
    return state.cluster


def test_what_the_engine_sees_is_recorded() -> None:
    cluster = after(cluster_of([A]), A, B)
    assert (cluster.node_names, cluster.devices_by_node, cluster.num_devices) == (("a", "b"), (2, 4), 6)
    cluster = after(cluster, B)
    assert (cluster.failed_nodes, cluster.num_devices) == ({0}, 4)
    cluster = after(cluster, A, EngineNode("b", 4, "preempted"))
    assert (cluster.failed_nodes, cluster.leaving_nodes, cluster.num_devices) == (frozenset(), {1}, 2)
    assert after(cluster, A, B).num_devices == 6


def test_a_node_that_returns_with_different_devices_is_a_new_node() -> None:
    cluster = after(cluster_of([A, B]), EngineNode("a", 3), B)
    assert (cluster.node_names, cluster.devices_by_node) == (("a", "b", "a~2"), (2, 4, 3))
    assert cluster.failed_nodes == {0}
    assert cluster.device_name(6) == "a~2/0"


def test_when_all_nodes_are_lost_jobs_wait_for_one_to_come_back() -> None:
    one = Scenario("a")
    one.assign(a=(0, 4))
    for node in (0, 1):
        one.feed(NodeFailed(one.now_s, node))
    one.exit("a", Fate.LOST)
    assert decided(one, Answer({})).event.devices == {}
    assert one.where("a") is JobState.PENDING
