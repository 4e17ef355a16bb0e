"""``scripts/bench all``: nothing already measured is measured again, and nothing is left out silently."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from benchmarks import all_command, crossover_scenarios, overlap, overlap_scenarios, profile_scenarios, queue_command
from benchmarks.all_command import (
    FULL_MINUTES,
    QUICK_MINUTES,
    arguments_of,
    chosen,
    plan_lines,
    run_all,
    share_out,
)
from benchmarks.parts import PARTS, Todo
from benchmarks.record import ONLY_SHOW, RowRecord, code_id, measured_code

from weft.errors import UsageError, WeftError

RESULTS = Path(__file__).parents[3] / "benchmarks" / "results"
OPTIONS: dict[str, Any] = {"quick": False, "only": "", "minutes": None, "fresh": False, "dry_run": False}


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Records what would run; ``restart`` fails."""
    commands: list[list[str]] = []

    def pretend(command: list[str]) -> int:
        commands.append(list(command[1:]))
        return int("benchmarks.restart" in command)

    monkeypatch.setattr(all_command, "_run", pretend)
    return commands


def test_a_benchmark_that_fails_stops_no_other_and_is_named(started: list[list[str]], tmp_path: Path) -> None:
    with pytest.raises(WeftError, match="restart failed"):
        run_all(**OPTIONS, out=tmp_path)
    names = [command[3] if command[1] == "weft" else command[1].rpartition(".")[2] for command in started]
    assert names == [name.removesuffix("_profiles") for name in PARTS]


def test_what_this_code_has_measured_is_not_run_again(
    started: list[list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "controller.json").write_text(json.dumps({"code": code_id(), "rows": []}))
    keys = PARTS["overlap"].keys
    assert keys is not None
    rows = [{"key": key, "code": code_id()} for key in keys(False)]
    (tmp_path / "overlap.json").write_text(json.dumps({"rows": rows[1:]}))
    run_all(**{**OPTIONS, "only": "overlap,controller"}, out=tmp_path)
    assert [command[1:4] for command in started] == [["weft", "bench", "overlap"]]
    said = capsys.readouterr().err
    assert f"1 of {len(rows)} rows left" in said
    assert "already measured" in said
    run_all(**{**OPTIONS, "only": "controller", "fresh": True}, out=tmp_path)
    assert started[-1][1] == "benchmarks.controller"


def test_a_dry_run_measures_nothing(started: list[list[str]], tmp_path: Path) -> None:
    run_all(**{**OPTIONS, "dry_run": True}, out=tmp_path)
    assert started == []


def test_a_budget_makes_fewer_rounds_and_the_plan_says_so() -> None:
    parts = chosen("overlap,elastic,restart")
    todo = {part.name: Todo(1, 1, part.minutes) for part in parts}
    limits = share_out(parts, todo, 26.5)
    assert limits["elastic"] == PARTS["elastic"].minutes  # it has no rounds to give up
    assert sum(limits.values()) == pytest.approx(26.5)
    assert any("with enough time" in line for line in plan_lines(parts, todo, limits))
    words = arguments_of(PARTS["restart"], quick=False, minutes=limits["restart"], fresh=False, out=None)
    assert words == ["--rounds", "1"]
    assert share_out(parts, todo, 90.0) == {part.name: part.minutes for part in parts}


@pytest.mark.parametrize(("minutes", "quick"), [(1.0, False), (40.0, False), (90.0, False), (5.0, True)])
def test_a_plan_takes_no_longer_than_it_may_and_leaves_out_the_least_valuable(minutes: float, quick: bool) -> None:
    parts = [part for part in PARTS.values() if part.has_quick or not quick]
    todo = {part.name: Todo(1, 1, part.quick_minutes if quick else part.minutes) for part in parts}
    limits = share_out(parts, todo, minutes, quick=quick)
    assert sum(limits.values()) <= minutes + 1e-6
    assert all(limits.values()) == (minutes == 90.0)
    for part in parts:
        assert limits[part.name] == 0 or limits[part.name] >= part.least(quick=quick) - 1e-9
    if minutes == 40.0:
        assert limits["queue"] > 0 < limits["overlap"]
        assert any("no time" in line for line in plan_lines(parts, todo, limits))


def plan(*, quick: bool) -> dict[str, float]:
    """Minutes by benchmark, where nothing has been measured yet."""
    parts = [part for part in PARTS.values() if part.has_quick or not quick]
    todo = {part.name: part.todo(Path("nothing"), quick=quick) for part in parts}
    limits = share_out(parts, todo, QUICK_MINUTES if quick else FULL_MINUTES, quick=quick)
    return {name: minutes for name, minutes in limits.items() if minutes > 0}


def test_a_quick_run_of_everything_shows_several_benchmarks_in_five_minutes() -> None:
    minutes = plan(quick=True)
    assert {"queue", "overlap", "crossover"} <= set(minutes)
    assert sum(minutes.values()) <= 5.0 + 1e-6
    # Time for a benchmark is of no use if none of its rows fits.
    assert sum(queue_command.keys(quick=True).values()) <= minutes["queue"]
    assert overlap_scenarios.fitting(overlap_scenarios.quick_run(), 60 * minutes["overlap"])
    assert crossover_scenarios.fitting(crossover_scenarios.quick_run(), 60 * minutes["crossover"])


def test_one_run_measures_a_part_of_every_benchmark_and_every_row_of_a_popular_model() -> None:
    minutes = plan(quick=False)
    assert set(minutes) == set(PARTS)
    assert sum(minutes.values()) <= 90.0 + 1e-6
    profiles = profile_scenarios.profiles_run()
    in_time_s = (1 + overlap.LATE) * 60 * minutes["overlap_profiles"]
    assert overlap_scenarios.fitting(profiles, in_time_s) == profiles
    # The README's first table: at least one round on every number of hosts.
    assert minutes["queue"] >= sum(queue_command.keys(quick=False).values()) / queue_command.ROUNDS


@pytest.mark.parametrize(
    ("name", "full", "quick"),
    [
        ("overlap", overlap_scenarios.full_run(), overlap_scenarios.quick_run()),
        ("overlap_profiles", profile_scenarios.profiles_run(), []),
        ("crossover", crossover_scenarios.full_run(), crossover_scenarios.quick_run()),
    ],
)
def test_the_plan_claims_what_the_rows_are_estimated_to_take(name: str, full: list[Any], quick: list[Any]) -> None:
    part = PARTS[name]
    assert part.minutes == pytest.approx(sum(scenario.estimated_s for scenario in full) / 60, rel=0.05)
    if quick:
        assert part.quick_minutes == pytest.approx(sum(scenario.estimated_s for scenario in quick) / 60, rel=0.05)


def test_the_plan_claims_what_the_plays_of_the_queue_are_estimated_to_take() -> None:
    part = PARTS["queue"]
    assert part.minutes == pytest.approx(sum(queue_command.keys(quick=False).values()), rel=0.05)
    assert part.quick_minutes == pytest.approx(sum(queue_command.keys(quick=True).values()), rel=0.05)


def test_an_unknown_benchmark_is_named() -> None:
    with pytest.raises(UsageError, match="there is no benchmark 'nonsense': expected one of queue, overlap"):
        chosen("elastic,nonsense")


def test_every_benchmark_runs_with_the_same_python(started: list[list[str]], tmp_path: Path) -> None:
    run_all(**{**OPTIONS, "only": "lease_handover", "quick": True}, out=tmp_path)
    assert started == [["-m", "benchmarks.lease_handover", "--quick", "--out", str(tmp_path)]]
    assert Path(sys.executable).exists()


def test_a_new_figure_makes_no_result_look_out_of_date_but_a_new_worker_does() -> None:
    names = set(measured_code().values())
    assert {"benchmarks/overlap_worker.py", "benchmarks/elastic/comparison.py", "weft/overlap/round.py"} <= names
    assert not {f"benchmarks/{name}" for name in ("overlap_plot.py", "queue_results.py", *ONLY_SHOW)} & names
    assert all((RESULTS.parent / name).exists() for name in ONLY_SHOW)


def test_there_is_one_current_result_per_benchmark() -> None:
    names = {path.stem for path in RESULTS.iterdir() if path.is_file()}
    assert names <= set(PARTS)
    for name in names:
        assert {path.suffix for path in RESULTS.glob(f"{name}.*")} == {".json", ".md", ".png"}


@pytest.mark.parametrize("name", sorted(PARTS))
def test_a_published_page_is_what_its_json_file_says(name: str, tmp_path: Path) -> None:
    path = RESULTS / f"{name}.json"
    if not path.exists():
        pytest.skip("not measured yet")
    document = json.loads(path.read_text())
    assert path.with_suffix(".md").read_text() == PARTS[name].page(document)
    PARTS[name].draw(document, tmp_path / "figure.png")
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")


def test_published_results_do_not_say_where_things_are_on_the_machine(tmp_path: Path) -> None:
    record = RowRecord(tmp_path, "overlap", "weft bench overlap")
    record.failures.append(f"`{sys.executable} -m benchmarks.overlap_worker` failed in {Path(__file__).parents[3]}/src")
    assert record.document()["failures"] == ["`python -m benchmarks.overlap_worker` failed in WEFT/src"]


def test_an_interrupted_benchmark_has_time_to_remove_its_hosts() -> None:
    child = (
        "import signal, time\n"
        "try:\n"
        "    print('began', flush=True)\n"
        "    signal.pause()\n"
        "except KeyboardInterrupt:\n"
        "    time.sleep(1.0)\n"  # longer than subprocess.run would wait before it kills
        "    print('removed', flush=True)\n"
    )
    parent = f"import sys; from benchmarks.all_command import _run; _run([sys.executable, '-c', {child!r}])"
    command = [sys.executable, "-c", parent]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=RESULTS.parents[1], start_new_session=True
    ) as both:
        assert both.stdout is not None
        assert both.stdout.readline() == b"began\n"
        os.killpg(both.pid, signal.SIGINT)
        assert both.stdout.read() == b"removed\n"
