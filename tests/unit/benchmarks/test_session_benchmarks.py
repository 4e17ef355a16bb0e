"""The session's benchmarks add up what they measured, and draw it."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks import restart, session_costs
from benchmarks.restart import PARTS, WORDS, JobRun, parts_s

OLD = JobRun(asked_s=10.0, gone_s=13.0, marks=({"step": 11.0, "saved": 12.0}, {"step": 10.5, "saved": 12.5}))
MARKS = {"script": 14.0, "imported": 15.0, "joined": 16.0, "loaded": 17.0, "first_step": 18.0}
NEW = JobRun(asked_s=20.0, gone_s=21.0, marks=(MARKS, {**MARKS, "first_step": 19.0}))


def cells(table: str, first: str) -> list[str]:
    """The row that begins with these words."""
    (row,) = [line for line in table.splitlines() if line.startswith(f"| {first}")]
    return [cell.strip() for cell in row.strip("|").split("|")]


def test_the_parts_of_a_restart_follow_the_slowest_worker_and_add_up() -> None:
    parts = parts_s(OLD, NEW)
    assert parts.pop("total") == 9.0
    assert sum(parts.values()) == pytest.approx(9.0)
    assert (parts["stop"], parts["save"], parts["exit"], parts["first step"]) == (1.0, 1.5, 0.5, 2.0)


def test_the_table_of_restarts_compares_with_torchrun() -> None:
    times = {name: [{**dict.fromkeys(PARTS, 0.1), "total": 0.8}] for name in WORDS}
    times["torchrun"] = [{**dict.fromkeys(PARTS, 0.4), "total": 3.2}]
    shown = restart.tables({"rounds": 1, "times_s": times})
    assert shown.endswith("torchrun / warm: 4.00x")
    assert cells(shown, WORDS["warm"])[1] == "100"


def test_a_single_round_is_not_called_rounds_and_several_have_an_interval() -> None:
    times = {name: [{**dict.fromkeys(PARTS, 0.1), "total": 0.8}] * 3 for name in WORDS}
    assert "medians of 3 rounds." in restart.tables({"rounds": 3, "times_s": times})
    assert restart.tables({"rounds": 3, "times_s": times}).endswith("interval: 1.00x (1.00-1.00)")
    one = {name: rounds[:1] for name, rounds in times.items()}
    assert "medians of 1 round." in restart.tables({"rounds": 1, "times_s": one})
    row = {field: 0.001 for field, _, _ in session_costs.MEASURED} | {"step_ms": 9.0, "num_late_checkpoints": 1.0}
    assert "Two workers, 1 round. Checkpoint blocks: steps of 9.0 ms; 1 checkpoint took" in session_costs.tables(
        {"rows": [row]}
    )


def test_a_restart_is_drawn_for_every_contender(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    times = {name: [{**dict.fromkeys(PARTS, 0.1), "total": 0.8}] for name in WORDS}
    about = {"date": "2026-01-02 03:04 UTC", "machine": {"cores": 2}}
    restart.draw({**about, "rounds": 1, "times_s": times}, tmp_path / "restart.png")
    assert (tmp_path / "restart.png").read_bytes().startswith(b"\x89PNG")


def test_the_costs_of_a_session_show_their_worst_round_too() -> None:
    row = {field: 0.001 for field, _, _ in session_costs.MEASURED} | {"step_ms": 9.0, "num_late_checkpoints": 0.0}
    shown = session_costs.tables({"rows": [row, {**row, "checkpoint_fraction": 0.04}, row]})
    assert [cell for cell in cells(shown, "a checkpoint every 50 steps") if "%" in cell] == ["0.10%", "4.00%", "5.0%"]
