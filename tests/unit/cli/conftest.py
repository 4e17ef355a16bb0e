"""Commands run in this process against a controller in memory, over the real socket."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.fake_controller import FakeController, served

from weft.cli import main
from weft.daemon.home import Home


@pytest.fixture
def controller() -> FakeController:
    return FakeController()


@pytest.fixture
def home(controller: FakeController, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Home]:
    root = tmp_path / "home"
    monkeypatch.setenv("WEFT_HOME", str(root))
    with served(controller, root) as home:
        yield home


@dataclass(frozen=True)
class Shown:
    """What a command left behind."""

    code: int
    out: str
    err: str

    def json(self) -> Any:
        return json.loads(self.out)


@pytest.fixture
def weft(capfd: pytest.CaptureFixture[str]) -> Callable[..., Shown]:
    def call(*args: str) -> Shown:
        capfd.readouterr()
        code = 0
        try:
            main(args)
        except SystemExit as end:
            code = int(end.code or 0)
        return Shown(code, *capfd.readouterr())

    return call
