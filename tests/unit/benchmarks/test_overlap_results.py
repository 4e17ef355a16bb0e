from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from benchmarks.overlap_plot import draw
from benchmarks.overlap_results import Results
from benchmarks.overlap_rows import FIELDS, make_row, speedup
from benchmarks.overlap_scenarios import (
    CONTENDERS,
    MODELS,
    RATIOS,
    Effort,
    Scenario,
    Timed,
    full_run,
    quick_run,
    scenario_from_json,
)

SHAPE = {
    "forward_s": 0.25,
    "backward_s": 0.5,
    "update_s": 0.05,
    "last_forward_s": 0.01,
    "last_backward_s": 0.02,
    "gradient_bytes": 100_000_000,
    "first_layer_bytes": 4_000_000,
}


def lane(step_s: float) -> dict[str, Any]:
    return {
        "step_s": step_s,
        "round_s": [step_s],
        "wire_bytes_per_step": 1e8,
        "state_bytes": 10,
        "loss_equal_to_ddp": True,
    }


def measured(*names: str) -> dict[str, Any]:
    contenders = {name: lane(1.0 + 0.1 * index) for index, name in enumerate(names)}
    return {"shape": SHAPE, "contenders": contenders, "ddp_bucket_mb": 4.0}


def scenario(model: str = "mlp", num_hosts: int = 2, timed: Timed | None = None) -> Scenario:
    return Scenario(model, num_hosts, 1.0, CONTENDERS, Effort(), timed)


def test_a_row_has_every_frozen_field_in_order() -> None:
    row = make_row(scenario(), 1e9, measured(*CONTENDERS), {})
    assert [name for name in row if name in FIELDS] == list(FIELDS)
    assert all(row[name] is not None for name in FIELDS)
    assert row["network_over_compute"] == 1.0


def test_a_contender_that_was_left_out_is_null_not_missing() -> None:
    row = make_row(scenario(), 1e9, measured("alone", "ddp"), {})
    assert row["weft_ms"] is None
    assert row["loss_equal"] is None
    assert set(FIELDS) <= set(row)


def test_emulated_compute_is_labelled() -> None:
    assert make_row(scenario("timed", 8, Timed()), 1e9, measured("alone"), {})["emulated_compute"] is True
    assert make_row(scenario(), 1e9, measured("alone"), {})["emulated_compute"] is False


def test_a_speedup_needs_both_times() -> None:
    assert speedup({"ddp_ms": 3.0, "weft_ms": 2.0}, "ddp", "weft") == 1.5
    assert speedup({"ddp_ms": 3.0, "weft_ms": None}, "ddp", "weft") is None


def test_a_crash_after_some_rows_leaves_them_readable(tmp_path: Path) -> None:
    results = Results(tmp_path, datetime(2026, 1, 2, 3, 4, 5), "weft bench overlap --quick")
    results.rows.append(make_row(scenario(), 1e9, measured(*CONTENDERS), {"ddp": 10, "weft": 9}))
    results.save()
    kept = json.loads((tmp_path / "overlap-2026-01-02-030405.json").read_text())
    assert kept["rows"] == json.loads(json.dumps(results.rows))
    assert kept["command"] == "weft bench overlap --quick"
    assert kept["date"].startswith("2026-01-02")
    assert kept["machine"]["cores"] >= 1


def test_the_table_names_what_could_not_be_measured(tmp_path: Path) -> None:
    results = Results(tmp_path, datetime(2026, 1, 2), "weft bench overlap", failures=["mlp, 2 hosts: lost\nmore"])
    results.rows.append(make_row(scenario(), 1e9, measured("alone", "ddp"), {}))
    results.save()
    text = results.path("md").read_text()
    assert "- mlp, 2 hosts: lost" in text
    assert any(line.startswith("| mlp |") for line in text.splitlines()), "the row that was measured is missing"


def test_the_picture_is_drawn_from_whatever_was_measured(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    rows = [
        make_row(scenario(), 1e9, measured(*CONTENDERS), {}),
        make_row(scenario("timed", 4, Timed()), 1e9, measured("alone", "ddp", "weft"), {}),
    ]
    draw(rows, tmp_path / "all.png", "a caption")
    draw(rows[1:], tmp_path / "emulated.png", "a caption")
    for name in ("all.png", "emulated.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")


def test_the_full_run_covers_every_model_ratio_and_number_of_hosts() -> None:
    scenarios = full_run()
    real = {(s.model, s.ratio) for s in scenarios if s.timed is None and s.num_hosts == 2}
    assert real == {(model, ratio) for model in MODELS for ratio in RATIOS} | {("vocabulary", 1.3)}
    emulated = [(s.num_hosts, s.workers_per_host) for s in scenarios if s.timed is not None]
    assert emulated == [(2, 1), (4, 1), (8, 1), (2, 2), (2, 4), (4, 4)]
    for s in scenarios:
        assert set(FIELDS) >= {f"{name}_ms" for name in s.contenders} & set(FIELDS)
        assert {"alone", "ddp", "weft"} <= set(s.contenders)
    compared = [s for s in scenarios if "ddp_best" in s.contenders]
    assert {(s.model, s.ratio) for s in compared if s.timed is None} == real
    assert all("weft_eager" in s.contenders for s in compared if s.timed is None)
    assert all("dear" in s.contenders for s in compared if s.timed is None)
    assert {(s.model, s.ratio) for s in compared if "fsdp2" in s.contenders and s.timed is None} == {
        (model, ratio) for model in MODELS for ratio in (1.0, 1.3)
    }


def test_the_quick_run_has_two_ratios_and_four_emulated_hosts() -> None:
    assert [(s.num_hosts, s.ratio, s.timed is not None) for s in quick_run()] == [
        (2, 0.3, False),
        (2, 1.0, False),
        (4, 1.0, True),
    ]


@pytest.mark.parametrize("original", [*full_run(), *quick_run()], ids=lambda s: s.label)
def test_a_scenario_survives_the_way_to_the_worker(original: Scenario) -> None:
    assert scenario_from_json(json.loads(json.dumps(original.as_json()))) == original
