"""Without a Ray that can be used, `weft up --engine ray` says what to install."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

import pytest

from weft.engines.ray.ray_engine import RayEngine, check_installed
from weft.errors import EngineError, MissingToolError


def test_ray_missing_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(package: str) -> str:
        raise importlib.metadata.PackageNotFoundError(package)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    with pytest.raises(MissingToolError, match=r"Ray is not installed here: run `pip install 'weft\[ray\]'`"):
        check_installed()


@pytest.mark.parametrize("version", ["2.54.1", "1.13.0"])
def test_a_ray_that_is_too_old_is_named(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda package: version)
    with pytest.raises(MissingToolError, match=f"Ray {version} is installed, expected 2.55 or later"):
        check_installed()


@pytest.mark.parametrize("version", ["2.55.0", "2.60.0", "3.0.0rc1"])
def test_a_ray_that_is_new_enough_is_used(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda package: version)
    check_installed()


def test_jobs_that_still_run_on_this_machine_are_not_left_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda package: "2.60.0")
    (tmp_path / "engine" / "orders").mkdir(parents=True)
    (tmp_path / "engine" / "orders" / "job@1.json").write_text("{}")
    with pytest.raises(EngineError, match="still running on this machine"):
        RayEngine(tmp_path)
