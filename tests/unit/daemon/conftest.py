"""A controller in a folder of its own, on an engine without processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.unit.daemon.scripted_engine import ScriptedEngine

from weft.core.job import Launch
from weft.core.submission import Submission
from weft.daemon import commit_log, engine_news, orders, series_files
from weft.daemon.home import Home
from weft.daemon.scheduling import SchedulingOptions
from weft.daemon.service import Controller
from weft.store import Journal


def a_job(**values: object) -> Submission:
    return Submission(Launch(("python", "train.py"), "/"), **values)  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retries and writes in the background come at once; when they do is not what these tests are about."""
    for module in (commit_log, engine_news, orders):
        monkeypatch.setattr(module, "_TRY_AGAIN_S", 0.05)
    monkeypatch.setattr(series_files, "_WRITE_EVERY_S", 0.05)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    place = Home(tmp_path / "home")
    place.prepare()
    return place


@pytest.fixture
def engine() -> ScriptedEngine:
    return ScriptedEngine()


@pytest.fixture
def open_controller(home: Home, engine: ScriptedEngine) -> Iterator[Callable[..., Controller]]:
    """Open a controller on the home; the one before it is shut down first."""
    opened: list[Controller] = []

    def end_last() -> None:
        if opened:
            opened[-1].shutdown()
            opened[-1].join()

    def make(policy: str = "balanced", **values: object) -> Controller:
        end_last()
        engine.reopened()
        options = SchedulingOptions(policy=policy, **values)  # type: ignore[arg-type]
        controller = Controller(home, Journal(home.journal_file), engine, options, paranoid=True)
        controller.start()
        opened.append(controller)
        return controller

    yield make
    end_last()


@pytest.fixture
def controller(open_controller: Callable[..., Controller]) -> Controller:
    return open_controller()
