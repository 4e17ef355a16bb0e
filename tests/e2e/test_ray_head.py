"""The head of a Ray cluster is lost while jobs run: what survives depends on where Ray keeps what it knows.

Without storage of its own, Ray forgets everything with the head; the journal and the checkpoints do not.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.ray_cluster import RayTestCluster, cluster_in, until
from tests.ray_controller import PATIENCE_S, RayController, controller_on

pytestmark = [pytest.mark.netns, pytest.mark.soak, pytest.mark.timeout(1200)]

NUM_SAMPLES = 3000


@pytest.fixture
def empty_cluster(tmp_path: Path) -> Iterator[RayTestCluster]:
    with cluster_in(tmp_path) as made:
        yield made


def test_jobs_resume_on_a_cluster_whose_head_was_lost(empty_cluster: RayTestCluster) -> None:
    empty_cluster.add()
    empty_cluster.add().wait_until_up()
    with controller_on(empty_cluster) as controller:
        jobs = [controller.submit(workers, 1200) for workers in ("3", "1")]
        for job_id in jobs:
            controller.wait_for_step(job_id, 3)
        for node in empty_cluster.nodes:  # the other raylets give up a minute after the head
            node.kill()
        for node in empty_cluster.nodes:
            node.start_again()
        controller.up()
        for job_id in jobs:
            controller.completes(job_id)


@pytest.fixture
def stored(empty_cluster: RayTestCluster, tmp_path: Path) -> Iterator[RayController]:
    """On a cluster whose head keeps what it knows on disk; it starts Ray again when that has ended."""
    on_disk = {"RAY_gcs_storage": "rocksdb", "RAY_gcs_storage_path": str(tmp_path / "gcs")}
    # How long other nodes wait for the head: Ray's minute may be too short for it to start on a busy machine.
    patient = {"RAY_gcs_rpc_server_reconnect_timeout_s": "180"}
    empty_cluster.add(variables={**on_disk, **patient}, is_service=True)
    empty_cluster.add(variables=patient).wait_until_up()
    with controller_on(empty_cluster) as made:
        yield made


def one_on_each_node(controller: RayController) -> tuple[str, str]:
    """The job on the head, and the one on the other node; a node has two devices."""
    jobs = [controller.submit("2", NUM_SAMPLES) for _ in controller.cluster.nodes]
    for job_id in jobs:
        controller.wait_for_step(job_id, 3)
    by_node = {node: job_id for job_id in jobs for node in controller.runs_on(job_id)}
    head, other = (by_node[node.address] for node in controller.cluster.nodes)
    return head, other


def test_with_stored_gcs_a_restarted_head_costs_the_jobs_of_other_nodes_nothing(stored: RayController) -> None:
    on_head, elsewhere = one_on_each_node(stored)
    head, other = stored.cluster.nodes
    agent, raylet = other.pids("ray::NodeAgent"), other.pids("raylet/raylet")
    os.kill(head.pids("gcs_server")[0], signal.SIGKILL)
    until(lambda: stored.job(on_head)["attempt"] == 2, PATIENCE_S, lambda: stored.explained(on_head))
    stored.completes(on_head)
    stored.completes(elsewhere)
    assert stored.job(elsewhere)["attempt"] == 1, stored.explained(elsewhere)
    assert (other.pids("ray::NodeAgent"), other.pids("raylet/raylet")) == (agent, raylet)


@pytest.mark.parametrize("is_noticed", [False, True])
def test_with_stored_gcs_a_head_that_lost_power_costs_jobs_at_most_a_restart(
    stored: RayController, is_noticed: bool
) -> None:
    """The controller is lost with it; its home is in a folder that outlives the machine.

    ``is_noticed``: the head does not answer for longer than wardens tolerate, so that workers elsewhere are ended.
    """
    on_head, elsewhere = one_on_each_node(stored)
    head, other = stored.cluster.nodes
    raylet = other.pids("raylet/raylet")
    if is_noticed:
        head.cut()  # a machine without power refuses no connection
        head.kill()
        until(lambda: not other.workers(), PATIENCE_S)
        head.join()
    head.start_again()
    stored.up()
    stored.completes(on_head)
    stored.completes(elsewhere)
    assert stored.job(on_head)["restarts"] == 1, stored.explained(on_head)
    assert stored.job(elsewhere)["restarts"] == int(is_noticed), stored.explained(elsewhere)
    assert other.pids("raylet/raylet") == raylet
