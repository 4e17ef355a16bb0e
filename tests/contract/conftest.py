"""Every engine, each on a bench."""

from __future__ import annotations

import importlib.util
import zlib
from collections.abc import Iterator

import pytest
from tests.contract.benches import Bench, FakeBench, LocalBench, SimulatedBench


@pytest.fixture(scope="module", params=["fake", "simulated", "local-cold", "local-warm"])
def bench(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """One per module: a warm engine imports torch, which takes longer than all the tests."""
    if request.param == "local-warm" and importlib.util.find_spec("torch") is None:
        pytest.skip("a warm engine imports torch, which is not installed")
    made: FakeBench | SimulatedBench | LocalBench
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
