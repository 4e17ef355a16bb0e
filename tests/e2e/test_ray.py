"""A controller on a real Ray cluster: jobs across nodes, and what happens to them when nodes are lost."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.ray_cluster import REPOSITORY, RayTestCluster, environment, until

pytestmark = [pytest.mark.netns, pytest.mark.timeout(900)]

JOB = REPOSITORY / "tests" / "faults" / "session_job.py"
PATIENCE_S = 240.0
NUM_SAMPLES = 400


class RayController:
    """`weft` on the head of a cluster; everything it keeps is in the folder that all nodes see."""

    def __init__(self, cluster: RayTestCluster, name: str) -> None:
        self.cluster = cluster
        self.folder = cluster.shared / name
        self.home = self.folder / "home"
        self.folder.mkdir()

    def weft(self, *words: str, fails: bool = False, token: str | None = "same") -> str:
        own = environment() if token == "same" else environment(token)
        ended = subprocess.run(
            [*self.cluster.nodes[0].enter(), sys.executable, "-m", "weft", *words],
            env={**own, "WEFT_HOME": str(self.home), "WEFT_CHECKPOINT_EVERY_S": "1"},
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )
        assert (ended.returncode != 0) == fails, f"weft {words}: {ended.returncode} {ended.stdout} {ended.stderr}"
        return ended.stderr if fails else ended.stdout

    def up(self) -> None:
        self.weft("up", "--engine", "ray", "--address", self.cluster.address, "--port", "0", "--hold-s", "1")

    def submit(self, workers: str, num_samples: int = NUM_SAMPLES, step_s: float = 0.05) -> str:
        script = [sys.executable, str(JOB), str(num_samples), str(step_s), str(self.folder)]
        # Its own interpreter means the one that weft runs in: a warm start.
        words = ["submit", "--workers", workers, "--env", "WEFT_CHECKPOINT_EVERY_S=1", "--", "python", *script[1:]]
        return self.weft(*words).strip()

    def job(self, job_id: str) -> dict[str, Any]:
        rows = json.loads(self.weft("status", "--json"))["jobs"]
        return next(row for row in rows if row["id"] == job_id)

    def nodes(self) -> dict[str, dict[str, Any]]:
        return {row["name"]: row for row in json.loads(self.weft("nodes", "--json"))["nodes"]}

    def runs_on(self, job_id: str) -> set[str]:
        """Names of the nodes whose devices the job has."""
        return {
            name for name, row in self.nodes().items() if any(job_id in device["jobs"] for device in row["devices"])
        }

    def wait_for_step(self, job_id: str, step: int) -> None:
        until(lambda: self.job(job_id)["step"] >= step, PATIENCE_S, lambda: self.explained(job_id))

    def completes(self, job_id: str) -> None:
        """Every sample was seen exactly once, and no worker of an attempt was started twice."""
        self.weft("wait", "--timeout-s", str(PATIENCE_S - 10), job_id)
        counts = json.loads((self.folder / f"ledger-{job_id}.json").read_text())
        assert counts == [1.0] * len(counts)
        starts = [line for line in (self.folder / "diary").read_text().splitlines() if f" {job_id} " in line]
        assert len(starts) == len(set(starts))

    def explained(self, job_id: str) -> str:
        log = self.home / "controller.log"
        return f"{self.weft('explain', job_id)}\n{log.read_text()[-3000:]}"

    def down(self) -> None:
        self.weft("down", "--jobs")


@pytest.fixture
def controller(ray_cluster: RayTestCluster, request: pytest.FixtureRequest) -> Iterator[RayController]:
    made = RayController(ray_cluster, request.node.name)
    made.up()
    yield made
    for row in json.loads(made.weft("status", "--json"))["jobs"]:
        made.weft("cancel", row["id"])
    made.down()
    nothing_is_left_on(ray_cluster)


def nothing_is_left_on(cluster: RayTestCluster) -> None:
    """After everything was ended: no process, no actor, no placement group."""

    def processes() -> list[str]:
        words = ("weft-keeper", "weft-warden", "weft.engines")
        return [f"{node.address}: {word}" for node in cluster.nodes for word in words if node.pids(word)]

    script = (
        "import ray, ray.util; ray.init(address='auto', log_to_driver=False); "
        "print([a['name'] for a in ray.util.list_named_actors(all_namespaces=True)] + "
        "[g['name'] for g in ray.util.placement_group_table().values() if g['state'] != 'REMOVED'])"
    )
    command = [*cluster.nodes[0].enter(), sys.executable, "-c", script]
    found: list[str] = []

    def is_clean() -> bool:
        ended = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=PATIENCE_S)
        found[:] = [ended.stdout.strip().splitlines()[-1] if ended.stdout.strip() else ended.stderr[-500:]]
        return found == ["[]"]

    until(is_clean, PATIENCE_S, lambda: str(found))
    until(lambda: not processes(), PATIENCE_S, lambda: str(processes()))


def test_jobs_across_nodes_and_off_a_drained_one_see_every_sample_once(controller: RayController) -> None:
    wide = controller.submit("3")  # a node has two devices
    controller.completes(wide)
    assert controller.job(wide)["restarts"] == 0
    job_id = controller.submit("2", num_samples=2000)
    controller.wait_for_step(job_id, 3)
    (first,) = controller.runs_on(job_id)
    assert f"{first}/1" in controller.weft("nodes")
    controller.weft("nodes", "drain", first)
    until(lambda: first not in controller.runs_on(job_id), PATIENCE_S, lambda: controller.explained(job_id))
    assert controller.nodes()[first]["status"] == "drained"
    controller.weft("nodes", "resume", first)
    controller.completes(job_id)
    assert controller.job(job_id)["restarts"] == 1


@pytest.mark.soak
def test_the_controller_killed_finds_workers_on_every_node_again(controller: RayController) -> None:
    job_id = controller.submit("4", num_samples=2000)
    controller.wait_for_step(job_id, 3)
    for pid in controller.cluster.nodes[0].pids("--foreground"):
        os.kill(pid, signal.SIGKILL)
    controller.up()
    controller.completes(job_id)
    assert controller.job(job_id)["attempt"] == 1


@pytest.mark.soak
@pytest.mark.parametrize("victim", ["ray::NodeAgent", "ray::AttemptOwner", "raylet/raylet"])
def test_whoever_is_killed_every_job_completes(controller: RayController, victim: str) -> None:
    jobs = [controller.submit("2", num_samples=2000) for _ in range(2)]
    for job_id in jobs:
        controller.wait_for_step(job_id, 3)
    second = controller.cluster.nodes[1]
    os.kill(second.pids(victim)[0], signal.SIGKILL)
    if victim == "raylet/raylet":
        until(lambda: controller.nodes()[second.address]["status"] == "lost", PATIENCE_S)
        second.kill()
        second.start()
        second.wait_until_up()
        until(lambda: controller.nodes()[second.address]["status"] == "up", PATIENCE_S)
    for job_id in jobs:
        controller.completes(job_id)


def test_a_cluster_without_a_token_is_refused_and_says_why(ray_cluster: RayTestCluster) -> None:
    controller = RayController(ray_cluster, "no-token")
    said = controller.weft("up", "--engine", "ray", "--port", "0", fails=True, token=None)
    assert "anyone who can reach its ports can run code as you" in said
    assert "--insecure-ray" in said


def test_an_address_where_nothing_answers_is_named(ray_cluster: RayTestCluster) -> None:
    controller = RayController(ray_cluster, "unreachable")
    said = controller.weft("up", "--engine", "ray", "--address", "127.0.0.1:1", "--port", "0", fails=True)
    assert "nothing answers at 127.0.0.1:1" in said


def test_a_home_that_nodes_do_not_share_is_refused_and_the_node_is_named(ray_cluster: RayTestCluster) -> None:
    controller = RayController(ray_cluster, "not-shared")
    controller.home = Path("/tmp/only-on-the-head")
    said = controller.weft("up", "--engine", "ray", "--port", "0")
    assert "is running" in said
    second = ray_cluster.nodes[1].address
    assert second not in controller.nodes()
    log = [*ray_cluster.nodes[0].enter(), "cat", "/tmp/only-on-the-head/controller.log"]
    assert f"node {second} does not see /tmp/only-on-the-head" in subprocess.check_output(log, text=True)
    controller.down()
