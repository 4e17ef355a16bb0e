"""Shared by all tests: pytest puts this folder on the path, so that they can import ``workers`` and ``training``."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import workers


@pytest.fixture(scope="session", autouse=True)
def _no_worker_outlives_the_tests() -> Iterator[None]:
    yield
    workers.FLEET.stop()
