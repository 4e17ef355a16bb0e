"""From step times to a row: the table must follow from what was timed."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from benchmarks import crossover as benchmark
from benchmarks.crossover_results import brief_table, filler_table, full_table, keep, open_record, ratio_table
from benchmarks.crossover_rows import (
    FIELDS,
    Cost,
    PairTimes,
    Timed,
    bound_s,
    make_row,
    pair_times,
    ratio,
    slowdown,
    slowest,
)
from benchmarks.crossover_scenarios import (
    MIN_ROUNDS,
    QUICK_MINUTES,
    Effort,
    Lone,
    Scenario,
    equal,
    filler,
    full_run,
    quick_run,
    within,
)
from benchmarks.intervals import NO_INTERVAL
from benchmarks.record import Row, RowRecord

from weft.cli.bench import bench
from weft.errors import UsageError

PLAIN = Cost(compute_s=1.0, network_s=1.0, alone_s=2.0)


def row_of(scenario: Scenario, shared: PairTimes, second: Cost = PLAIN) -> Row:
    cells = {"in_phase": PairTimes(4.0, 4.0), "random_phase": PairTimes(3.0, 3.0), "crossover": shared}
    rounds = [{"alone": [2000, 2000], **{name: [1e3 * c.first_s, 1e3 * c.second_s] for name, c in cells.items()}}] * 2
    details: dict[str, Any] = {"loss_equal": True, "timelines": {}, "rounds": rounds, "ratio_wanted": scenario.ratio}
    return {**make_row(scenario, PLAIN, second, cells, details), "key": scenario.key}


def test_the_slowest_worker_counts() -> None:
    answers = [{"began_s": 0.0, "ends_s": [1.0, 2.5]}, {"began_s": 0.1, "ends_s": [1.2, 2.0]}]
    assert slowest(answers) == Timed(0.1, (1.2, 2.5))


def test_only_the_time_in_which_both_jobs_run_counts() -> None:
    # B begins late and continues, faster, after A has ended: neither may show in the pair's times.
    first = Timed(0.0, (1.0, 3.0, 5.0, 7.0))
    second = Timed(1.0, (3.0, 5.0, 7.0, 8.0, 9.0))
    assert pair_times(first, second) == PairTimes(2.0, 2.0)


def test_the_time_of_an_equal_pair_is_until_both_have_made_a_step() -> None:
    row = row_of(equal("plain", 1.0, Effort()), PairTimes(2.2, 2.2))
    assert row["crossover_ms"] == pytest.approx(2200)
    assert row["serial_ms"] == 4000
    assert row["in_phase_ms"] == pytest.approx(4000)
    assert set(FIELDS) <= set(row)


@pytest.mark.parametrize(
    ("job", "expected_s"),
    [
        (Cost(1.0, 0.5, 1.5), 2.0),  # the device
        (Cost(1.0, 1.2, 2.2), 2.4),  # the link
        (Cost(1.0, 1.0, 2.5), 2.5),  # a job alone
    ],
)
def test_neither_device_nor_link_nor_a_job_alone_can_be_beaten(job: Cost, expected_s: float) -> None:
    assert bound_s(job, job, handover_s=0.0) == pytest.approx(expected_s)


def test_the_filler_is_compared_with_the_time_the_primary_leaves() -> None:
    half = Cost(compute_s=0.5, network_s=0.0, alone_s=0.5)
    # The primary leaves half of the device; the filler computes 0.5 of every 1.25 seconds.
    row = row_of(filler("plain", 1.0, Effort()), PairTimes(2.04, 1.25), half)
    assert row["primary_slowed"] == pytest.approx(0.02)
    assert row["left_over"] == pytest.approx(0.5)
    assert row["filler_got"] == pytest.approx(0.8)


def test_a_pair_that_cannot_gain_is_refused_in_the_row() -> None:
    busy = Cost(compute_s=1.0, network_s=1.0, alone_s=1.02)
    cells = {name: PairTimes(2.0, 2.0) for name in ("in_phase", "random_phase", "crossover")}
    row = make_row(equal("overlap", 1.0, Effort()), busy, busy, cells, {})
    assert "less than the 1.15x required" in row["refused"]
    assert row_of(equal("plain", 1.0, Effort()), PairTimes(2.2, 2.2))["refused"] is None


def test_pairing_uses_what_a_job_reports_not_what_the_benchmark_knows() -> None:
    # 0.3 s longer than its compute, of which it waits for 0.02: moving bytes has slowed the compute down.
    slowed = Cost(compute_s=1.0, network_s=1.0, alone_s=1.3, waited_s=0.02)
    cells = {name: PairTimes(2.6, 2.6) for name in ("in_phase", "random_phase", "crossover")}
    row = make_row(equal("overlap", 1.0, Effort()), slowed, slowed, cells, {})
    assert row["predicted_gain"] < 1.05
    assert row["refused"]


def test_every_row_of_a_run_has_a_name_of_its_own() -> None:
    for run in (full_run(), quick_run()):
        assert len({scenario.key for scenario in run}) == len(run)


def test_a_ratio_has_an_interval_over_rounds() -> None:
    row = row_of(equal("plain", 1.0, Effort()), PairTimes(2.0, 2.0))
    assert str(ratio(row, "in_phase")) == "2.00x (2.00-2.00)"
    assert str(ratio(row, "serial")) == "2.00x (2.00-2.00)"
    for cells in row["rounds"]:  # as rows were before each round had the job alone
        cells.pop("alone", None)
    assert str(ratio(row, "serial")) == "2.00x"


def test_every_ratio_of_a_pair_has_an_interval_and_one_round_says_that_it_has_none(tmp_path: Path) -> None:
    record = open_record(tmp_path, "weft bench crossover")
    for scenario in (equal("ddp", 1.0, Effort()), filler("ddp", 1.0, Effort())):
        row = row_of(scenario, PairTimes(2.2, 2.4))
        record.put(scenario.key, {**row, "rounds": [*row["rounds"], row["rounds"][0]]})
    assert str(slowdown(record.rows[0], 1)) == "1.20x (1.20-1.20)"
    for num_rounds in (3, 1):
        for row in record.rows:
            row["rounds"] = row["rounds"][:num_rounds]
        document = record.document()
        for lines in (ratio_table(record.rows), full_table(document), brief_table(document)):
            text = "\n".join(lines)
            assert (NO_INTERVAL in text) == (num_rounds == 1)
            # All but what pairing predicts, which is not measured.
            assert len(re.findall(r"x \(\d", text)) >= (2 if num_rounds == 3 else 0)
            assert num_rounds == 3 or not re.search(r"x \(\d", text)
        (line,) = [line for line in filler_table(record.rows[1:]) if line.startswith("| ddp")]
        assert ("+10.0 % (+10.0 to +10.0 %)" if num_rounds == 3 else "| +10.0 % |") in line


def test_rounds_shrink_to_fit_a_budget_but_two_are_left() -> None:
    scenarios = full_run()
    tight = within(scenarios, 1.0)
    assert isinstance(tight, Scenario)
    assert tight.effort.num_rounds == MIN_ROUNDS
    assert within(scenarios, float("inf")) == scenarios[0]
    assert isinstance(within(scenarios[-1:], 1.0), Lone)
    assert sum(scenario.estimated_s for scenario in quick_run()) < 60 * QUICK_MINUTES * 1.05


def test_an_interrupted_run_resumes_with_the_missing_rows(tmp_path: Path) -> None:
    record = open_record(tmp_path, "weft bench crossover")
    scenario = equal("plain", 1.0, Effort())
    record.put(scenario.key, row_of(scenario, PairTimes(2.2, 2.2)))
    keep(record)
    again = open_record(tmp_path, "weft bench crossover")
    assert again.rows == json.loads(json.dumps(record.rows))
    assert again.measured(scenario.key) is not None
    assert again.measured(equal("plain", 0.5, Effort()).key) is None


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> RowRecord:
    monkeypatch.chdir(tmp_path)
    record = open_record(tmp_path, "weft bench crossover")
    scenario = equal("plain", 1.2, Effort())
    timelines = {cell: {"A": [["compute", 0, 900]], "B": [["turn", 0, 900]]} for cell in ("in_phase", "crossover")}
    record.put(scenario.key, {**row_of(scenario, PairTimes(2.2, 2.2)), "timelines": timelines})
    monkeypatch.setattr(benchmark, "run_scenarios", lambda scenarios, **options: record)
    return record


def test_stdout_has_only_json(measured: RowRecord, capsys: pytest.CaptureFixture[str]) -> None:
    bench(["crossover", "--quick", "--json"], "weft bench")
    assert set(FIELDS) <= set(json.loads(capsys.readouterr().out)["rows"][0])


def test_the_table_shows_the_gain_and_a_picture_is_drawn(
    measured: RowRecord, capsys: pytest.CaptureFixture[str]
) -> None:
    bench(["crossover", "--quick"], "weft bench")
    assert "1.82" in capsys.readouterr().out
    assert measured.path("png").exists()


def test_a_row_that_does_not_exist_is_named(measured: RowRecord) -> None:
    with pytest.raises(UsageError, match=r"equal plain 1\.2"):
        bench(["crossover", "--only", "equal nonsense"], "weft bench")
