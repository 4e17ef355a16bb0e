"""Controllers as processes that are cleaned up however a test ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.crash.driven_controller import DrivenController

Begin = Callable[..., DrivenController]


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Begin]:
    """Start a controller process in the test's folder."""
    begun: list[DrivenController] = []

    def make(num_devices: int = 2, environment: dict[str, str] | None = None) -> DrivenController:
        begun.append(DrivenController(tmp_path, num_devices, environment))
        return begun[-1]

    yield make
    for controller in begun:
        if not controller.is_closed:
            controller.kill()
    if any((tmp_path / "home" / "engine" / "orders").glob("*.json")):
        make().end_everything()


@pytest.fixture
def controller(begin: Begin) -> DrivenController:
    return begin().ready()
