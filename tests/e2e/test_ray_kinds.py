"""A real Ray cluster whose nodes have devices of two kinds, one three times as fast as the other."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.ray_cluster import RayTestCluster, RayTestNode, cluster_in, until
from tests.ray_controller import PATIENCE_S, RayController, controller_on

pytestmark = [pytest.mark.netns, pytest.mark.soak, pytest.mark.timeout(900)]

STEP_S = {"old": 0.3, "new": 0.1}

# Its speed depends on the node: each has its own /tmp.
JOB = """
import time
from pathlib import Path
import torch
import weft

step_s = float(Path("/tmp/step_s").read_text())
with weft.session() as run:
    model = torch.nn.Linear(1, 1)
    data = run.loader(torch.utils.data.TensorDataset(torch.zeros(10000, 1)), batch_size=1)
    run.resume(model=model, data=data)
    for (x,) in run.steps(data, epochs=1):
        model(x)
        time.sleep(step_s)
"""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[RayTestCluster]:
    with cluster_in(tmp_path) as made:
        for kind, step_s in STEP_S.items():
            node = made.add(kind=kind)
            node.wait_until_up()
            subprocess.run([*node.enter(), "sh", "-c", f"echo {step_s} > /tmp/step_s"], check=True)
        yield made


def test_the_faster_kind_is_learned_from_one_job_and_given_to_the_next(cluster: RayTestCluster) -> None:
    old, new = cluster.nodes
    with controller_on(cluster) as controller:
        assert {name: row["kind"] for name, row in controller.nodes().items()} == {
            old.address: "old",
            new.address: "new",
        }
        assert "KIND" in controller.weft("nodes")
        first = run_on(controller, old, away_from=new)
        assert "on old" in controller.weft("explain", first)
        move(controller, first, new, away_from=old)
        controller.weft("nodes", "resume", old.address)
        until(lambda: "x as fast as on old" in controller.weft("explain", first), PATIENCE_S)
        told = controller.weft("explain", first)
        ratio = float(told.partition("x as fast as on old")[0].split()[-1])
        assert ratio > 1, told
        assert "(expected)" not in told.partition("x as fast as on old")[2][:12]

        second = submit(controller)
        controller.wait_for_step(second, 3)
        assert controller.runs_on(second) == {new.address}
        told = controller.weft("explain", second)
        assert "x as fast as on old (expected)" in told  # it has not run there


def submit(controller: RayController) -> str:
    script = controller.folder / "paced.py"
    script.write_text(JOB)
    return controller.weft("submit", "--workers", "1", "--", "python", str(script)).strip()


def run_on(controller: RayController, node: RayTestNode, away_from: RayTestNode) -> str:
    """A job that was measured on this node."""
    controller.weft("nodes", "drain", away_from.address)
    job_id = submit(controller)
    controller.wait_for_step(job_id, 25)
    assert controller.runs_on(job_id) == {node.address}
    return job_id


def move(controller: RayController, job_id: str, node: RayTestNode, away_from: RayTestNode) -> None:
    """Until the job was measured there, too."""
    controller.weft("nodes", "resume", node.address)
    controller.weft("nodes", "drain", away_from.address)
    until(lambda: controller.runs_on(job_id) == {node.address}, PATIENCE_S, lambda: controller.explained(job_id))
    controller.wait_for_step(job_id, int(controller.job(job_id)["step"]) + 50)
