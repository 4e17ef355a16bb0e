"""``weft bench overlap`` as a user calls it, with the measuring itself replaced."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from benchmarks import overlap as benchmark
from benchmarks.overlap_rows import FIELDS
from benchmarks.record import RowRecord
from tests.hang_limit import HANG_S

from weft.cli import bench as bench_module
from weft.cli.bench import bench
from weft.errors import MissingToolError, WeftError

ROOT = Path(__file__).parents[3]
ROW: dict[str, Any] = {
    **{name: 100.0 for name in FIELDS if name.endswith("_ms")},
    "model": "mlp",
    "hosts": 2,
    "emulated_compute": False,
    "network_over_compute": 1.0,
    "weft_ms": 50.0,
    "ratio_wanted": 1.0,
    "workers_per_host": 1,
    "rounds": 2,
    "ddp_bucket_mb": 4.0,
    "dear_bucket_mb": 4.0,
    "round_ms": {"ddp": [90.0, 110.0], "weft": [45.0, 55.0]},
}
KEY = "mlp 2 hosts 1"


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> RowRecord:
    results = RowRecord(tmp_path, "overlap", "weft bench overlap")
    results.put(KEY, ROW)
    monkeypatch.chdir(tmp_path)

    def pretend(scenarios: list[Any], **options: Any) -> RowRecord:
        for scenario in scenarios:
            options["on_progress"](1, scenario.label)
        return results

    monkeypatch.setattr(benchmark, "run_scenarios", pretend)
    return results


def run(*args: str) -> None:
    bench(["overlap", *args], "weft bench")


def test_stdout_has_only_json(measured: RowRecord, capsys: pytest.CaptureFixture[str]) -> None:
    run("--quick", "--json")
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert row.items() >= ROW.items()


def test_the_table_shows_times_gain_and_where_the_files_are(
    measured: RowRecord, capsys: pytest.CaptureFixture[str]
) -> None:
    run("--quick")
    shown = capsys.readouterr().out
    assert "2.00x" in shown
    assert str(measured.path("json")) in shown
    assert measured.path("png").exists()


def test_a_quick_run_that_left_out_rows_does_not_send_its_user_to_measure_the_same_one_again(
    measured: RowRecord, capsys: pytest.CaptureFixture[str]
) -> None:
    run("--quick")
    assert "2 of 3 rows did not fit into the time: allow more --minutes" in capsys.readouterr().err
    run()
    assert "did not fit into the time: run the command again" in capsys.readouterr().err


def test_rows_that_failed_make_the_command_fail_after_showing_the_rest(
    measured: RowRecord, capsys: pytest.CaptureFixture[str]
) -> None:
    measured.failures.append("mlp, 2 hosts, ratio 1: host 1 ended")
    with pytest.raises(WeftError, match="host 1 ended"):
        run("--quick")
    assert "2.00x" in capsys.readouterr().out


def test_missing_root_is_reported_before_measuring(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(MissingToolError, match="need root") as raised:
        run("--quick")
    assert raised.value.exit_code == 3


@pytest.mark.parametrize("name", ["overlap", "crossover", "elastic", "queue", "all"])
def test_an_installation_without_benchmarks_says_where_they_are(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delitem(sys.modules, "benchmarks")
    monkeypatch.setattr(bench_module, "PLACES", (tmp_path / "benchmarks", tmp_path / "bundled" / "benchmarks"))
    with pytest.raises(MissingToolError, match="clone the repository and run `scripts/bench`"):
        bench([name, "--quick"], "weft bench")


def test_a_checkout_runs_its_benchmarks_from_any_folder(tmp_path: Path) -> None:
    """Without the repository on the path: the benchmark itself refuses an unknown model."""
    done = subprocess.run(
        [sys.executable, "-m", "weft", "bench", "overlap", "--quick", "--model", "nonsense"],
        capture_output=True,
        text=True,
        timeout=HANG_S,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
    )
    assert done.returncode == 2
    assert "this run has no model 'nonsense'" in done.stderr
