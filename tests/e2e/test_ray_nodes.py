"""Nodes of a real Ray cluster that join and leave, and a queue that outlives one of them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.ray_cluster import RayTestCluster, cluster_in, environment, until
from tests.ray_controller import BATCH_SIZE, PATIENCE_S, RayController, controller_on

pytestmark = [pytest.mark.netns, pytest.mark.soak, pytest.mark.timeout(1200)]

QUEUE = ("1", "2", "1:2", "1:4", "3", "1", "2", "1:3", "1", "2:4", "1", "1:2")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[RayTestCluster]:
    """Of its own: nodes are added to it, and lost."""
    with cluster_in(tmp_path) as made:
        made.add()
        made.add().wait_until_up()
        yield made


def test_a_node_that_joins_is_used_and_one_that_ray_drains_is_left(cluster: RayTestCluster) -> None:
    with controller_on(cluster) as controller:
        first_job, job_id = controller.submit("4", num_samples=12_000), controller.submit("2", num_samples=400)
        controller.wait_for_step(first_job, 3)
        assert controller.job(job_id)["state"] == "PENDING"
        third = cluster.add()
        third.wait_until_up()
        joined_s = time.monotonic()
        until(lambda: third.address in controller.nodes(), PATIENCE_S)
        seen_s = time.monotonic() - joined_s
        until(lambda: third.address in controller.runs_on(job_id), PATIENCE_S, lambda: controller.explained(job_id))
        used_s = time.monotonic() - joined_s
        controller.client.cancel(first_job)
        controller.completes(job_id)
        second_job = controller.submit("3", num_samples=1200)  # on more nodes than the head
        controller.wait_for_step(second_job, 3)
        (node, *_) = sorted(controller.runs_on(second_job) - {cluster.nodes[0].address})
        asked_s = time.monotonic()
        drain(controller, node)
        until(lambda: controller.nodes()[node]["status"] == "leaving", PATIENCE_S)
        heard_s = time.monotonic() - asked_s
        until(lambda: node not in controller.runs_on(second_job), PATIENCE_S)
        left_s = time.monotonic() - asked_s
        print(f"joined: listed after {seen_s:.1f} s, used after {used_s:.1f} s")
        print(f"drained by Ray: known after {heard_s:.1f} s, left after {left_s:.1f} s")
        controller.completes(second_job)
        assert controller.job(second_job)["restarts"] == 1
        assert controller.num_steps(second_job) == 1200 // BATCH_SIZE  # none was lost and taken again


def drain(controller: RayController, address: str) -> None:
    """As `ray drain-node` does, which needs the node's id."""
    script = (
        "import subprocess, sys, ray; ray.init(address='auto', log_to_driver=False); "
        f"node = next(n['NodeID'] for n in ray.nodes() if n['Alive'] and n['NodeManagerAddress'] == '{address}'); "
        "sys.exit(subprocess.call(['ray', 'drain-node', '--node-id', node, '--reason', "
        "'DRAIN_NODE_REASON_PREEMPTION', '--reason-message', 'test', '--deadline-remaining-seconds', '600', "
        f"'--address', '{controller.cluster.address}']))"
    )
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    command = [*controller.cluster.nodes[0].enter(), sys.executable, "-c", script]
    done = subprocess.run(command, env={**environment(), "PATH": path}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_queue_completes_although_a_raylet_is_killed_partway(cluster: RayTestCluster) -> None:
    with controller_on(cluster) as controller:
        jobs = [controller.submit(workers, num_samples=200, num_epochs=2) for workers in QUEUE]
        states = lambda: [controller.job(job_id)["state"] for job_id in jobs]  # noqa: E731
        until(lambda: states().count("COMPLETED") >= 3, PATIENCE_S)
        second = cluster.nodes[1]
        os.kill(second.pids("raylet/raylet")[0], signal.SIGKILL)
        until(lambda: controller.nodes()[second.address]["status"] == "lost", PATIENCE_S)
        second.start_again()
        for job_id in jobs:
            controller.completes(job_id)
        print({job_id: controller.job(job_id)["restarts"] for job_id in jobs})
        assert any(controller.job(job_id)["restarts"] for job_id in jobs)
