"""Shared by all tests: pytest puts this folder on the path, so that they can import ``workers`` and ``training``."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import settings

import workers

# The same examples on every run, so that a change is judged by what it changed.  To look further, now and then:
# pytest --hypothesis-profile=random tests/unit
settings.register_profile("repeatable", derandomize=True)
settings.register_profile("random", max_examples=500)
settings.load_profile("repeatable")


@pytest.fixture(scope="session", autouse=True)
def _no_worker_outlives_the_tests() -> Iterator[None]:
    yield
    workers.FLEET.stop()
