"""Real Ray clusters, and real nodes, that cannot be used: one message names the node and says what to do."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.ray_cluster import RayTestCluster, cluster_in, until
from tests.ray_controller import PATIENCE_S, RayController, controller_on

from weft.version import __version__

pytestmark = [pytest.mark.netns, pytest.mark.soak, pytest.mark.timeout(900)]

# Found by every Python that has its folder in PYTHONPATH: weft is not installed there.
HIDES_WEFT = """
import importlib.metadata, sys

version = importlib.metadata.version

def hidden(package):
    if package == "weft":
        raise importlib.metadata.PackageNotFoundError(package)
    return version(package)

class Hidden:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] == "weft":
            raise ModuleNotFoundError(name)

importlib.metadata.version = hidden
sys.meta_path.insert(0, Hidden)
"""


def without_weft(folder: Path) -> str:
    (folder / "sitecustomize.py").write_text(HIDES_WEFT)
    return f"has no weft, the controller has {__version__}: install weft {__version__}"


def with_another(package: str) -> Callable[[Path], str]:
    def prepare(folder: Path) -> str:
        about = folder / f"{package}-0.0.1.dist-info"
        about.mkdir()
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 0.0.1\n")
        return f"has {package} 0.0.1, the controller has"

    return prepare


@pytest.fixture
def head(tmp_path: Path) -> Iterator[RayTestCluster]:
    with cluster_in(tmp_path) as made:
        made.add()
        yield made


@pytest.mark.parametrize(
    "prepare", [without_weft, with_another("weft"), with_another("torch")], ids=["no weft", "weft", "torch"]
)
def test_a_node_with_other_packages_is_left_out_and_named(
    head: RayTestCluster, tmp_path: Path, prepare: Callable[[Path], str]
) -> None:
    folder = tmp_path / "packages"
    folder.mkdir()
    words = prepare(folder)
    with controller_on(head) as controller:
        own_paths = os.environ.get("PYTHONPATH", "")
        second = head.add(variables={"PYTHONPATH": os.pathsep.join([str(folder), own_paths])})
        second.wait_until_up()

        def told() -> str:
            return " ".join(controller.client.health()["warnings"])

        until(lambda: f"node {second.address} {words}" in told(), PATIENCE_S, told)
        assert second.address not in controller.nodes()


def test_a_wrong_token_is_named(head: RayTestCluster) -> None:
    controller = RayController(head)
    said = controller.weft("up", "--engine", "ray", "--port", "0", fails=True, token="f" * 48)
    assert "rejected our token: RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH must give the token it was started with" in said


def test_a_job_that_no_number_of_nodes_here_can_run_is_refused(head: RayTestCluster) -> None:
    with controller_on(head) as controller:
        said = controller.weft("submit", "--workers", "3", "--", "true", fails=True)
        assert "wants at least 3 workers, this cluster has 2 devices: lower --workers or add nodes" in said
