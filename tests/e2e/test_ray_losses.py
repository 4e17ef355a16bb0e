"""Parts of a real Ray cluster are lost while jobs run on it: every job completes and sees every sample once.

A short one of these is in ``test_ray.py``, which has a cluster in every run; the head is lost in ``test_ray_head.py``.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator

import pytest
from tests.ray_cluster import RayTestCluster, RayTestNode, until
from tests.ray_controller import PATIENCE_S, RayController, controller_on, nothing_is_left_on

from weft.errors import WeftError

pytestmark = [pytest.mark.netns, pytest.mark.soak, pytest.mark.timeout(900)]

NUM_SAMPLES = 1200
PHASES = ("start", "stop", "forget")
"""What a controller does to an attempt; it is killed just before and just after."""


@pytest.fixture
def controller(ray_cluster: RayTestCluster) -> Iterator[RayController]:
    with controller_on(ray_cluster) as made:
        yield made


def running(controller: RayController, *workers: str, max_restarts: int = 0) -> list[str]:
    """Jobs that take steps, one for each number of workers; a node has two devices."""
    jobs = [controller.submit(number, NUM_SAMPLES, max_restarts=max_restarts) for number in workers]
    for job_id in jobs:
        controller.wait_for_step(job_id, 3)
    return jobs


def kill(node: RayTestNode, word: str) -> None:
    os.kill(node.pids(word)[0], signal.SIGKILL)


@pytest.mark.parametrize("victim", ["worker", "weft-keeper", "local.zygote", "ray::AttemptOwner"])
def test_a_killed_process_of_a_job_costs_it_at_most_a_restart(controller: RayController, victim: str) -> None:
    jobs = running(controller, "3", "1", max_restarts=1)
    nodes = reversed(controller.cluster.nodes)
    found = [pid for node in nodes for pid in (node.workers() if victim == "worker" else node.pids(victim))]
    os.kill(found[0], signal.SIGKILL)
    for job_id in jobs:
        controller.completes(job_id)
        assert controller.job(job_id)["restarts"] <= 1, controller.explained(job_id)


@pytest.mark.parametrize("how", ["raylet", "power"])
def test_a_lost_node_loses_no_sample_and_is_used_again_when_it_is_back(controller: RayController, how: str) -> None:
    jobs = running(controller, "1:2", "1:2")
    second = controller.cluster.nodes[1]
    if how == "raylet":
        kill(second, "raylet/raylet")
    else:
        second.kill()
    until(lambda: controller.nodes()[second.address]["status"] == "lost", PATIENCE_S)
    second.start_again()
    until(lambda: controller.nodes()[second.address]["status"] == "up", PATIENCE_S)
    for job_id in jobs:
        controller.completes(job_id)


@pytest.mark.parametrize("cut_s", [5, 60])
def test_a_cut_link_loses_no_sample(controller: RayController, cut_s: int) -> None:
    jobs = running(controller, "3", "1")
    second = controller.cluster.nodes[1]
    second.cut()
    time.sleep(cut_s)  # the length of the cut is what is tested
    second.join()
    if cut_s > 30:  # Ray has given up on the node, and its raylet ends as soon as it hears of that
        until(second.has_ended, PATIENCE_S)
        second.start()
        second.wait_until_up()
    until(lambda: controller.nodes()[second.address]["status"] == "up", PATIENCE_S)
    for job_id in jobs:
        controller.completes(job_id)


@pytest.mark.parametrize("moment", [f"{when}_{phase}" for phase in PHASES for when in ("before", "after")])
def test_a_controller_killed_in_any_phase_starts_nothing_twice(ray_cluster: RayTestCluster, moment: str) -> None:
    controller = RayController(ray_cluster)
    controller.up(failpoint=f"controller.{moment}")
    job_id = controller.submit("2", num_samples=600)
    if moment.endswith("stop"):
        controller.wait_for_step(job_id, 3)
        with contextlib.suppress(WeftError):  # it may be gone before it has answered
            controller.client.drain(*controller.runs_on(job_id))
    until(lambda: not controller.is_up(), PATIENCE_S)
    controller.up()
    controller.completes(job_id)
    controller.down()
    nothing_is_left_on(ray_cluster)


def test_a_killed_controller_finds_workers_on_every_node_again(controller: RayController) -> None:
    jobs = running(controller, "3", "1")
    attempts = [controller.job(job_id)["attempt"] for job_id in jobs]
    kill(controller.cluster.nodes[0], "--foreground")
    until(lambda: not controller.is_up(), PATIENCE_S)
    controller.up()
    assert [controller.job(job_id)["attempt"] for job_id in jobs] == attempts
    for job_id in jobs:
        controller.completes(job_id)
