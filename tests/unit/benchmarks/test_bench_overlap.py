"""``weft bench overlap`` as a user calls it, with the measuring itself replaced."""

from __future__ import annotations

import json
import os
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from benchmarks import overlap as benchmark
from benchmarks.overlap_results import Results
from benchmarks.overlap_rows import FIELDS
from typer.testing import CliRunner

from weft.cli import bench_overlap
from weft.cli.bench import app
from weft.errors import MissingToolError, WeftError

ROW: dict[str, Any] = {
    **{name: 100.0 for name in FIELDS if name.endswith("_ms")},
    "model": "mlp",
    "hosts": 2,
    "emulated_compute": False,
    "network_over_compute": 1.0,
    "weft_ms": 50.0,
}


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Results:
    results = Results(tmp_path, datetime(2026, 1, 2), "weft bench overlap", rows=[ROW])

    def pretend(scenarios: list[Any], **options: Any) -> Results:
        for scenario in scenarios:
            options["on_progress"](scenario.num_steps, scenario.label)
        return results

    monkeypatch.setattr(benchmark, "run_scenarios", pretend)
    return results


def test_json_is_all_there_is_on_stdout(measured: Results) -> None:
    done = CliRunner().invoke(app, ["overlap", "--quick", "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout) == {"rows": [ROW]}


def test_the_table_shows_times_gain_and_where_the_files_are(measured: Results) -> None:
    done = CliRunner().invoke(app, ["overlap", "--quick"])
    assert done.exit_code == 0, done.output
    assert "2.00x" in done.stdout
    assert str(measured.path("json")) in done.stdout
    assert measured.path("png").exists()


def test_rows_that_failed_make_the_command_fail_after_showing_the_rest(measured: Results) -> None:
    measured.failures.append("mlp, 2 hosts, ratio 1: host 1 ended")
    done = CliRunner().invoke(app, ["overlap", "--quick"])
    assert isinstance(done.exception, WeftError)
    assert "host 1 ended" in str(done.exception)
    assert "2.00x" in done.stdout


def test_without_root_it_says_so_before_measuring(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    done = CliRunner().invoke(app, ["overlap", "--quick"])
    assert isinstance(done.exception, MissingToolError)
    assert done.exception.exit_code == 3
    assert "need root" in str(done.exception)


def test_an_installed_weft_without_the_repository_says_where_the_benchmarks_are(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(bench_overlap, "__file__", str(tmp_path / "a" / "b" / "c" / "bench_overlap.py"))
    done = CliRunner().invoke(app, ["overlap"])
    assert isinstance(done.exception, MissingToolError)
    assert "clone the repository" in str(done.exception)
