"""Shared by all tests: pytest puts this folder on the path, so that they can import ``workers`` and ``training``."""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator

import pytest
from hypothesis import settings
from tests.ray_cluster import RayTestCluster, cluster_in

import workers

# The same examples on every run, so that a change is judged by what it changed.  To look further, now and then:
# pytest --hypothesis-profile=random tests/unit
# No deadline: how long an example takes says more about what else the machine does than about weft.
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.register_profile("random", max_examples=500, deadline=None)
settings.load_profile("repeatable")


# A shell starts background commands with SIGINT ignored, and everything that tests start would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Workers inherit these: what one test has compiled serves the next, and nothing is left behind.
COMPILED_CODE = tempfile.mkdtemp(prefix="weft-test-inductor-")
atexit.register(shutil.rmtree, COMPILED_CODE, ignore_errors=True)  # also of a process that runs no test
os.environ.update(TORCHINDUCTOR_CACHE_DIR=COMPILED_CODE, TORCHINDUCTOR_COMPILE_THREADS="1")


@pytest.fixture(scope="session", autouse=True)
def _no_worker_outlives_the_tests() -> Iterator[None]:
    yield
    workers.FLEET.stop()


@pytest.fixture(scope="module")
def ray_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayTestCluster]:
    """Two nodes with two devices each, made when the first test of a file needs them.

    Not for all files: they run in different processes, and an idle cluster uses CPU time until the last test.
    """
    with cluster_in(tmp_path_factory.mktemp("ray")) as cluster:
        cluster.add()
        cluster.add().wait_until_up()
        yield cluster
