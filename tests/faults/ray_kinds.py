"""The faults of a Ray cluster, by kind.  The cluster is left as machines would be; the controller may be gone."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable

from tests.ray_cluster import RayTestNode, until
from tests.ray_controller import PATIENCE_S, RayController

RayFault = Callable[[RayController, random.Random], None]
CUT_S = 5.0


def _kill_one(pids: list[int], rng: random.Random) -> None:
    if pids:
        os.kill(rng.choice(pids), signal.SIGKILL)


def _any_node(controller: RayController, rng: random.Random) -> RayTestNode:
    return rng.choice(controller.cluster.nodes)


def kill_controller(controller: RayController, rng: random.Random) -> None:
    head = controller.cluster.nodes[0]
    _kill_one(head.pids("--foreground"), rng)


def kill_bridge(controller: RayController, rng: random.Random) -> None:
    head = controller.cluster.nodes[0]
    _kill_one(head.pids("weft.engines.ray.bridge"), rng)


def kill_worker(controller: RayController, rng: random.Random) -> None:
    node = _any_node(controller, rng)
    _kill_one(node.workers(), rng)


def kill_keeper(controller: RayController, rng: random.Random) -> None:
    node = _any_node(controller, rng)
    _kill_one(node.pids("weft-keeper"), rng)


def kill_agent(controller: RayController, rng: random.Random) -> None:
    node = _any_node(controller, rng)
    _kill_one(node.pids("ray::NodeAgent"), rng)


def kill_owner(controller: RayController, rng: random.Random) -> None:
    node = _any_node(controller, rng)
    _kill_one(node.pids("ray::AttemptOwner"), rng)


def lose_node(controller: RayController, rng: random.Random) -> None:
    """The second node loses power and comes back."""
    controller.cluster.nodes[1].start_again()


def cut_link(controller: RayController, rng: random.Random) -> None:
    second = controller.cluster.nodes[1]
    second.cut()
    time.sleep(CUT_S)  # how long it is cut is the fault
    second.join()


RAY_KINDS: dict[str, RayFault] = {
    fault.__name__: fault
    for fault in (kill_controller, kill_bridge, kill_worker, kill_keeper, kill_agent, kill_owner, lose_node, cut_link)
}


def bring_back(controller: RayController) -> None:
    """As its user would."""
    if not controller.is_up():
        controller.up()
    until(lambda: all(row["status"] == "up" for row in controller.nodes().values()), PATIENCE_S)
