"""One attempt on several nodes: which worker runs where, and how it ended."""

from __future__ import annotations

import pytest

from weft.core.engine import StartOrder
from weft.core.events import Fate
from weft.core.job import Launch
from weft.engines.local.records import Status
from weft.engines.ray.cluster_order import ClusterOrder, RayNode, cluster_order, joined
from weft.engines.ray.node_check import INSECURE, problem
from weft.engines.worker_launch import GangPart, Script, placed_gang
from weft.errors import EngineError

NODES = {"a": RayNode("id-a", "a", "10.0.0.1", 2), "b": RayNode("id-b", "b", "10.0.0.2", 4)}


def ordered(*names: str) -> ClusterOrder:
    launch = Launch(("python", "train.py"), "/home/ada", {"LR": "1"})
    return cluster_order(StartOrder("job", 3, tuple(range(len(names))), launch, {"WEFT_X": "y"}, names), NODES)


def test_ranks_follow_the_devices_node_by_node() -> None:
    order = ordered("a/1", "b/0", "b/3")
    assert [(part.node_id, part.devices, part.first_rank) for part in order.parts] == [
        ("id-a", (1,), 0),
        ("id-b", (0, 3), 1),
    ]
    assert (order.num_workers, order.environment) == (3, {"LR": "1", "WEFT_X": "y"})
    assert ClusterOrder.from_json(order.to_json()) == order


@pytest.mark.parametrize("name", ["c/0", "a/2"])
def test_a_device_that_is_gone_is_named(name: str) -> None:
    with pytest.raises(EngineError, match=f"node {name[0]} is no longer part of the Ray cluster"):
        ordered("b/0", name)


def test_workers_on_two_nodes_get_consecutive_ranks_and_rendezvous_on_the_first() -> None:
    part = GangPart(2, 4, 1, 2, "10.0.0.2", "eth1", master_address="10.0.0.1", master_port=4000)
    first, second = placed_gang(Script("x"), cores_by_rank=[(0,), (1,)], port=4000, environment={}, part=part)
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "GLOO_SOCKET_IFNAME")
    assert [first.environment[name] for name in names] == ["2", "0", "4", "2", "1", "10.0.0.1", "eth1"]
    assert second.environment["RANK"] == "3"
    assert second.environment["NCCL_SOCKET_IFNAME"] == "eth1"


def end(fate: Fate, code: int = 0, reason: str = "", at_s: float = 5.0) -> Status:
    return Status(started_s=1.0, finished_s=at_s, fate=fate, exit_code=code, reason=reason)


def test_an_attempt_is_over_when_its_last_part_is() -> None:
    assert joined([("a", end(Fate.COMPLETED)), ("b", Status(started_s=2.0))]).fate is None
    both = joined([("a", end(Fate.COMPLETED)), ("b", end(Fate.COMPLETED, at_s=7.0))])
    assert (both.fate, both.finished_s) == (Fate.COMPLETED, 7.0)


def test_the_part_that_failed_first_is_the_reason_not_those_that_lost_it() -> None:
    gone = end(Fate.FAILED, 1, "worker 2 failed first: Connection closed by peer", at_s=3.0)
    cause = end(Fate.FAILED, 7, "worker 0 failed first: it left with exit code 7", at_s=4.0)
    found = joined([("a", cause), ("b", gone), ("c", end(Fate.STOPPED, 137, "killed"))])
    assert (found.fate, found.exit_code) == (Fate.FAILED, 7)
    assert found.reason == "worker 0 failed first: it left with exit code 7 (node a)"


def test_what_fails_because_a_node_was_lost_is_not_the_jobs_fault() -> None:
    found = joined([("a", end(Fate.FAILED, 1, "boom")), ("b", end(Fate.LOST, 1, "node b was lost"))])
    assert found.fate is Fate.LOST


def test_stopped_after_a_checkpoint_only_if_every_part_saved() -> None:
    saved = end(Fate.STOPPED, 75, "stopped after a checkpoint")
    unsaved = end(Fate.STOPPED, 143, "stopped without a checkpoint")
    found = [joined([("a", saved), ("b", other)]) for other in (saved, unsaved, end(Fate.COMPLETED))]
    assert [status.exit_code for status in found] == [75, 143, 75]


SAME = {"weft": "1.0", "torch": "2.13.0", "auth_mode": "token", "trouble": ""}


@pytest.mark.parametrize(
    ("found", "words"),
    [
        ({"weft": ""}, "node a has no weft, the controller has 1.0: install weft 1.0"),
        ({"weft": "0.9"}, "node a has weft 0.9, the controller has 1.0: install weft 1.0"),
        ({"torch": "2.12.0"}, "node a has torch 2.12.0, the controller has 2.13.0: install torch 2.13.0"),
        ({"torch": ""}, "node a has no torch, the controller has 2.13.0"),
        ({"auth_mode": "disabled"}, "anyone who can reach its ports can run code as you"),
        ({}, ""),
    ],
)
def test_a_node_that_cannot_be_used_says_what_to_do(found: dict[str, str], words: str) -> None:
    ours = {"weft": "1.0", "torch": "2.13.0"}
    said = problem("a", {**SAME, **found}, ours, "/shared", sees_folder=True, insecure=False)
    assert said.startswith(words) if not words.startswith("anyone") else words in INSECURE == said


def test_a_node_that_does_not_see_the_home_is_named() -> None:
    ours = {"weft": "1.0", "torch": "2.13.0"}
    said = problem("a", {**SAME, "trouble": "No such file"}, ours, "/shared", sees_folder=False, insecure=False)
    assert said.startswith("node a does not see /shared (No such file): checkpoints must be in a folder")
