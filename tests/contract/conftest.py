"""Every engine, each on a bench."""

from __future__ import annotations

import importlib.util
import re
import zlib
from collections.abc import Iterator

import pytest
from tests.contract.benches import Bench, FakeBench, LocalBench, RayBench, SimulatedBench

RAY = [pytest.mark.netns, pytest.mark.timeout(600)]
ENGINES = ["fake", "simulated", "local-cold", "local-warm", pytest.param("ray", marks=RAY)]
SHORT_ON_RAY = {
    "test_a_job_runs_to_its_end_and_each_event_is_reported_once",
    "test_a_failure_comes_with_its_exit_code_and_a_reason",
    "test_stopping_an_old_attempt_does_not_affect_the_next",
    "test_workers_keep_running_while_the_controller_is_away",
}
"""What every run checks on a Ray cluster.  The rest is marked ``soak``: starting Ray's actors takes seconds."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        name, _, parameters = item.name.partition("[")
        if re.search(r"\bray\b", parameters) and name not in SHORT_ON_RAY:
            item.add_marker(pytest.mark.soak)


@pytest.fixture(scope="module", params=ENGINES)
def bench(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """One per module: a warm engine imports torch, which takes longer than all the tests."""
    if request.param == "local-warm" and importlib.util.find_spec("torch") is None:
        pytest.skip("a warm engine imports torch, which is not installed")
    made: FakeBench | SimulatedBench | LocalBench
    if request.param == "ray":
        cluster = request.getfixturevalue("ray_cluster")
        home = cluster.shared / "home"
        home.mkdir()
        made = RayBench(home, cluster)
        yield made
        made.close()
        return
    if request.param == "fake":
        made = FakeBench()
    elif request.param == "simulated":
        made = SimulatedBench()
    else:
        made = LocalBench(tmp_path_factory.mktemp(request.param), warm=request.param == "local-warm")
    yield made
    made.close()


@pytest.fixture
def job_id(request: pytest.FixtureRequest) -> str:
    """A job id used only by this test."""
    return f"job-{zlib.crc32(request.node.name.encode())}"
