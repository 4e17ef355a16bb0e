from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from benchmarks import overlap
from benchmarks.intervals import NO_INTERVAL
from benchmarks.overlap_plot import draw
from benchmarks.overlap_results import (
    BELOW_ALONE,
    best_table,
    brief_hosts,
    brief_models,
    brief_profiles,
    keep,
    open_record,
)
from benchmarks.overlap_rows import FIELDS, best_of, best_peer, make_row, speedup
from benchmarks.overlap_scenarios import (
    CONTENDERS,
    FULL_MINUTES,
    MODELS,
    QUICK_MINUTES,
    RATIOS,
    Effort,
    Scenario,
    Timed,
    fitting,
    full_run,
    quick_run,
    scenario_from_json,
    within,
)
from benchmarks.profile_scenarios import profiles_run
from benchmarks.record import markdown_table

RESULTS = Path(overlap.__file__).parent / "results"
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
        "core_s_per_step": 0.1,
        "is_tuned": True,
        "step_s": step_s,
        "round_s": [0.9 * step_s, 1.1 * step_s],
        "wire_bytes_per_step": 1e8,
        "state_bytes": 10,
        "loss_equal_to_ddp": True,
    }


def measured(*names: str) -> dict[str, Any]:
    contenders = {name: lane(1.0 + 0.1 * index) for index, name in enumerate(names)}
    return {
        "shape": SHAPE,
        "contenders": contenders,
        "network_s": [0.8, 0.8],
        "latency_s": 1e-4,
        "ddp_bucket_mb": 4.0,
        "dear_bucket_mb": 8.0,
    }


def scenario(model: str = "mlp", num_hosts: int = 2, timed: Timed | None = None) -> Scenario:
    return Scenario(model, num_hosts, 1.0, CONTENDERS, Effort(), timed)


def test_a_row_has_every_frozen_field_in_order() -> None:
    row = make_row(scenario(), 1e9, measured(*CONTENDERS))
    assert [name for name in row if name in FIELDS] == list(FIELDS)
    assert all(row[name] is not None for name in FIELDS)
    assert row["network_over_compute"] == 1.0


def test_a_contender_that_was_left_out_is_null_not_missing() -> None:
    row = make_row(scenario(), 1e9, measured("alone", "ddp"))
    assert row["weft_ms"] is None
    assert row["loss_equal"] is None
    assert set(FIELDS) <= set(row)


def test_emulated_compute_is_labeled() -> None:
    assert make_row(scenario("timed", 8, Timed()), 1e9, measured("alone"))["emulated_compute"] is True
    assert make_row(scenario(), 1e9, measured("alone"))["emulated_compute"] is False


def test_a_speedup_needs_both_times() -> None:
    row = {"round_ms": {"ddp": [3.0, 6.0], "weft": [2.0, 4.0]}}
    ratio = speedup(row, "ddp", "weft")
    assert ratio is not None
    assert (ratio.value, ratio.low, ratio.high) == pytest.approx((1.5, 1.5, 1.5))
    assert speedup(row, "dear", "weft") is None


def test_each_peer_is_quoted_at_its_best() -> None:
    row = {"ddp_ms": 9.0, "ddp_best_ms": 7.0, "ddp_list_ms": 6.0, "ddp_plan_ms": None, "fsdp2_ms": 20.0, "dear_ms": 6.5}
    assert best_of(row, "DDP") == "ddp_list"
    assert best_of(row, "FSDP2") == "fsdp2"
    assert best_peer(row) == "ddp_list"
    assert best_of({"ddp_ms": 1.0}, "DeAR") is None


def test_a_crash_after_some_rows_leaves_them_readable_and_the_next_run_continues_after_them(tmp_path: Path) -> None:
    record = open_record(tmp_path, "weft bench overlap --quick")
    done = scenario()
    record.put(done.key, make_row(done, 1e9, measured(*CONTENDERS)))
    keep(record)
    kept = json.loads((tmp_path / "overlap.json").read_text())
    assert kept["rows"] == json.loads(json.dumps(record.rows))
    assert kept["command"] == "weft bench overlap --quick"
    assert kept["machine"]["cores"] >= 1
    again = open_record(tmp_path, "weft bench overlap")
    assert again.measured(done.key) == kept["rows"][0]
    again.rows[0]["code"] = "another version"
    assert again.measured(done.key) is None
    again.put(done.key, make_row(done, 1e9, measured("alone", "ddp")))
    assert [row["weft_ms"] for row in again.rows] == [None]


def test_no_row_of_other_code_stays_next_to_new_ones(tmp_path: Path) -> None:
    """A table whose rows are of several versions says nothing about any of them."""
    record = open_record(tmp_path, "weft bench overlap")
    for key in ("old", "new", "newer"):
        record.put(key, make_row(scenario(), 1e9, measured("alone", "ddp")))
        record.rows[-1]["code"] = "another version" if key == "old" else record.rows[-1]["code"]
    assert [row["key"] for row in record.rows] == ["new", "newer"]


def test_the_table_names_what_could_not_be_measured_and_how_many_rounds_were_made(tmp_path: Path) -> None:
    record = open_record(tmp_path, "weft bench overlap")
    record.failures.append("mlp, 2 hosts: lost\nmore")
    record.put("mlp", make_row(scenario(), 1e9, measured("alone", "ddp")))
    keep(record)
    text = record.path("md").read_text()
    assert "- mlp, 2 hosts: lost" in text
    (line,) = [line for line in text.splitlines() if line.startswith("| mlp |")][:1]
    assert [cell.strip() for cell in line.split("|")][2:5] == ["2", "1.00", "2"]  # hosts, ratio, rounds


def test_rounds_shrink_to_fit_a_budget_but_never_below_the_least() -> None:
    scenarios = [s for s in full_run() if s.model == "mlp"]
    wanted_s = sum(s.estimated_s for s in scenarios)
    assert within(scenarios, 2 * wanted_s).effort.round_budget_s <= scenarios[0].effort.round_budget_s
    tight = within(scenarios, 0.0).effort
    assert tight.rounds_in_budget(scenarios[0].round_s) == tight.min_rounds
    some = within(scenarios, 0.9 * wanted_s)
    assert scenarios[0].fixed_s < some.estimated_s < scenarios[0].estimated_s


@pytest.mark.parametrize("minutes", [0.5, 5.0, 20.0, 40.0, FULL_MINUTES])
@pytest.mark.parametrize("run", [full_run(), profiles_run()], ids=["models", "profiles"])
def test_a_run_ends_in_time_with_the_most_valuable_rows(run: list[Scenario], minutes: float) -> None:
    took_s, done, left = 0.0, [], list(run)
    while fit := fitting(left, 60 * minutes - took_s):
        took_s += within(fit, 60 * minutes - took_s).estimated_s
        done.append(fit[0].key)
        left.remove(fit[0])
    # A round more or less is not known before it runs.
    assert took_s < 60 * minutes + max(s.round_s for s in run)
    first = next((s for s in run if s.least_s <= 60 * minutes), None)
    assert done[:1] == ([] if first is None else [first.key])
    assert len(done) == len(run) or minutes < FULL_MINUTES


def test_the_quick_run_takes_less_than_five_minutes() -> None:
    assert sum(s.least_s for s in quick_run()) < 60 * QUICK_MINUTES


def test_the_picture_is_drawn_from_whatever_was_measured(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    rows = [
        make_row(scenario(), 1e9, measured(*CONTENDERS)),
        make_row(scenario("timed", 4, Timed()), 1e9, measured("alone", "ddp", "weft")),
    ]
    about = {"date": "2026-01-02 03:04 UTC", "machine": {"cores": 2}}
    draw({**about, "rows": rows}, tmp_path / "all.png")
    draw({**about, "rows": rows[1:]}, tmp_path / "emulated.png")
    for name in ("all.png", "emulated.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")


def test_the_full_run_covers_every_model_ratio_and_number_of_hosts() -> None:
    scenarios = full_run()
    real = {(s.model, s.ratio) for s in scenarios if s.timed is None and s.num_hosts == 2}
    assert real == {(model, 1.0) for model in MODELS} | {("mlp", ratio) for ratio in RATIOS}
    layouts = [(s.num_hosts, s.workers_per_host) for s in scenarios if s.timed is not None]
    assert sorted(layouts) == [(2, 1), (2, 2), (2, 4), (4, 4)]
    for s in scenarios:
        assert set(FIELDS) >= {f"{name}_ms" for name in s.contenders} & set(FIELDS)
        assert {"alone", "ddp", "weft"} <= set(s.contenders)
    compared = [s for s in scenarios if "ddp_best" in s.contenders]
    assert {(s.model, s.ratio) for s in compared if s.timed is None} == real
    assert all("weft_eager" in s.contenders for s in compared if s.model == "mlp")
    assert all("dear" in s.contenders for s in compared if s.timed is None)
    peers = set(CONTENDERS) - {"weft_eager"}
    everybody = {(s.model, s.ratio) for s in compared if peers <= set(s.contenders)}
    assert everybody == {(model, 1.0) for model in MODELS}
    assert len({s.key for s in scenarios}) == len(scenarios)


def test_the_part_about_hosts_is_the_test_a_user_made(tmp_path: Path) -> None:
    rows = [s for s in full_run() if s.part == "hosts" and s.num_hosts == 2]
    assert [(s.workers_per_host, round(20e6 * 8 / s.ratio / 1.2 / 1e6)) for s in rows] == [(1, 134), (2, 200), (4, 234)]
    record = open_record(tmp_path, "weft bench overlap --only hosts")
    names = ("alone", "weft", "ddp", "ddp_best", "ddp_plan")
    found = measured(*names)
    found["contenders"]["weft"] |= {"wire_bytes_per_step": SHAPE["gradient_bytes"] * 1.02, "num_connections": 9}
    record.put(rows[1].key, {**make_row(rows[1], 200e6, found), "settled_bytes": {"ddp": 30e6, "weft": 38e6}})
    keep(record)
    text = record.path("md").read_text()
    (line,) = [line for line in text.splitlines() if line.startswith("| 2 x 2 workers |")][:1]
    cells = [cell.strip() for cell in line.split("|")][1:-1]
    assert cells[1] == "200"
    assert cells[-7].endswith(", default")  # how DDP was fastest
    assert cells[-5:] == ["1.02", "1.00", "9", "30 MB", "38 MB"]


class Bed:
    """Hosts on which nothing runs."""

    rate_bits_per_s = 1e9

    def __init__(self, *args: Any, **options: Any) -> None: ...
    def __enter__(self) -> Bed:
        return self

    def __exit__(self, *args: object) -> None: ...
    def set_rate(self, rate_bits_per_s: float) -> None: ...


def test_a_row_of_sixteen_workers_never_appears_without_their_memory_and_connections(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    [sixteen] = [s for s in full_run() if s.num_hosts * s.workers_per_host == 16]
    assert sixteen.least_s > sixteen.memory_s > 30
    asked = []

    def work(bed: Bed, module: str, scenario: Scenario, *args: Any) -> dict[str, Any]:
        asked.append((module, scenario.contenders))
        if module == "overlap_memory":
            return {"peak_bytes": 60_000_000, "settled_bytes": 30_000_000 + 1_000_000 * len(asked)}
        found = measured(*scenario.contenders) | {"group_connections": 16}
        found["contenders"]["weft"] |= {"num_connections": 21}
        return found

    monkeypatch.setattr(overlap, "Testbed", Bed)
    monkeypatch.setattr(overlap, "_work", work)
    # No time is left for anything but the row.
    options: dict[str, Any] = {"command": "weft bench overlap", "on_progress": lambda done, what: None}
    record = overlap.run_scenarios([sixteen], **options, folder=tmp_path, minutes=sixteen.least_s / 60)
    assert asked == [
        ("overlap_worker", sixteen.contenders),
        ("overlap_memory", ("ddp",)),
        ("overlap_memory", ("weft",)),
    ]
    heads, line = (
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in record.path("md").read_text().splitlines()
        if line.startswith(("| hosts |", "| 4 x 4 workers |"))
    )
    shown = dict(zip(heads, line, strict=True))
    assert (shown["connections, DDP"], shown["connections, weft adds"]) == ("16", "21")
    assert (shown["memory, DDP"], shown["memory, weft"]) == ("32 MB", "33 MB")


def with_rounds(row: dict[str, Any], num_rounds: int) -> dict[str, Any]:
    times_ms = {name: [ms[0] + 10 * number for number in range(num_rounds)] for name, ms in row["round_ms"].items()}
    return {**row, "rounds": num_rounds, "round_ms": times_ms}


@pytest.mark.parametrize("num_rounds", [1, 3])
def test_every_ratio_of_three_rounds_has_an_interval_and_one_round_says_that_it_has_none(
    num_rounds: int, tmp_path: Path
) -> None:
    record = open_record(tmp_path, "weft bench overlap")
    for one in (scenario(), full_run()[3], profiles_run()[0]):
        record.put(one.key, {**with_rounds(make_row(one, 1e9, measured(*CONTENDERS)), num_rounds), "predicted_ms": {}})
    keep(record)
    document = record.document()
    profiles = {"rows": [row for row in record.rows if row["part"] == "profiles"]}
    made = [brief_models(document), brief_hosts(document), brief_profiles(profiles)]
    for text in (record.path("md").read_text(), *map("\n".join, made)):
        assert (NO_INTERVAL in text) == (num_rounds == 1)
        ratios = re.findall(r"\d\.\d\dx[^|,]*", text)
        assert ratios
        assert all(("(" in ratio) == (num_rounds > 1) for ratio in ratios)


def test_a_column_without_any_value_is_left_out_of_a_table() -> None:
    table = markdown_table(["a", "b", "c"], [[1, "-", "-"], [2, "-", 3]])
    assert table == ["| a | c |", "|---|---|", "| 1 | - |", "| 2 | 3 |"]
    assert markdown_table(["a", "b"], []) == ["| a | b |", "|---|---|"]


def test_a_bound_below_alone_is_explained_below_the_table_that_shows_it() -> None:
    def row_at(rate_bits_per_s: float) -> dict[str, Any]:
        row = make_row(scenario(), rate_bits_per_s, measured(*CONTENDERS))
        alone_ms = row["forward_ms"] + row["backward_ms"] + row["update_ms"]
        return {**row, "alone_ms": alone_ms, "date": "2026-01-02 03:04 UTC"}

    for lines in (best_table([row_at(1e12)]), brief_models({"rows": [row_at(1e12)]})):
        assert BELOW_ALONE in lines
        assert lines[-1] == "- mlp, 2 hosts, network/compute 1.00: bound 25.0 ms below `alone`, of at most 25.0 ms"
    assert BELOW_ALONE not in best_table([row_at(1e9)])


@pytest.mark.parametrize("name", ["overlap", "overlap_profiles"])
def test_no_published_bound_is_lower_than_sharing_the_update_explains(name: str) -> None:
    rows = json.loads((RESULTS / f"{name}.json").read_text())["rows"]
    assert rows
    for row in rows:
        shared_ms = row["update_ms"] * (1 - 1 / (row["hosts"] * row["workers_per_host"]))
        for bound in ("bound_ms", "eager_bound_ms"):
            assert row[bound] >= row["alone_ms"] - shared_ms - 0.02  # of rounding


def test_how_far_off_the_predictions_were_is_published_with_the_worst_row(tmp_path: Path) -> None:
    record = open_record(tmp_path, "weft bench overlap --profiles", "overlap_profiles")
    two, four = [s for s in profiles_run() if s.model == "resnet50" and s.workers_per_host == 1][:2]
    for one, step_s in ((two, 1.0), (four, 1.2)):
        found = measured("alone", "weft")
        found["contenders"]["weft"] = lane(step_s)
        row = make_row(one, 1e9, found)
        record.put(one.key, {**row, "predicted_ms": {"alone": 1200.0, "weft": 950.0}})
    keep(record)
    (line,) = [line for line in record.path("md").read_text().splitlines() if line.startswith("- weft: ")]
    assert line == (
        "- weft: predicted within 10 % in 1 of 2 rows, 13 % off on average, at worst -21 % (resnet50, 4 hosts of 1)"
    )


def test_the_quick_run_has_two_ratios_and_four_emulated_hosts() -> None:
    assert [(s.num_hosts, s.ratio, s.timed is not None) for s in quick_run()] == [
        (2, 1.0, False),
        (2, 0.3, False),
        (4, 1.0, True),
    ]


@pytest.mark.parametrize("original", [*full_run(), *quick_run()], ids=lambda s: s.label)
def test_a_scenario_reaches_the_worker_unchanged(original: Scenario) -> None:
    assert scenario_from_json(json.loads(json.dumps(original.as_json()))) == original
