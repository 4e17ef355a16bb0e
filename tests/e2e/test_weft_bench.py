"""``weft bench elastic`` where the public traces are absent, and what it keeps."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from benchmarks import elastic_command
from benchmarks.elastic import comparison
from benchmarks.elastic.claims import at_least, at_most, worse
from benchmarks.elastic.comparison import Comparison, find_data
from benchmarks.elastic.decision_speed import decision_times, replay_speeds
from benchmarks.elastic.equal_knowledge import load_rows
from benchmarks.elastic.optimality_gap import optimality_gaps
from benchmarks.elastic.published import means_of, published_times
from benchmarks.elastic.virtual_cluster import virtual_cluster
from benchmarks.record import keep_record, results_folder

from weft.core.cluster import Cluster
from weft.core.job import JobSpec
from weft.core.speed import StepTime
from weft.elastic import POLICIES
from weft.errors import InputError
from weft.sim import synthetic
from weft.sim.synthetic import own_kinds
from weft.sim.workload import TableProfile, TrueJob, Workload


def test_missing_trace_data_is_an_error_not_silently_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="expected a folder with pollux/workloads inside"):
        find_data(tmp_path)
    monkeypatch.setenv("WEFT_DATA", str(tmp_path))
    with pytest.raises(InputError, match="expected a folder with pollux/workloads inside"):
        find_data(None)
    (tmp_path / "pollux" / "workloads").mkdir(parents=True)
    assert find_data(None) == tmp_path


def test_without_the_public_traces_synthetic_queues_are_measured_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(elastic_command, "find_data", lambda named: None)
    monkeypatch.setattr(synthetic, "DEFAULT_JOBS", 12)
    monkeypatch.setattr(comparison, "QUICK_INSTANCES", 10)
    elastic_command.elastic("weft bench elastic", quick=True, as_json=True, data=None, out=tmp_path)
    printed = capsys.readouterr()
    assert "synthetic workloads instead" in printed.err
    rows = json.loads(printed.out)["rows"]
    assert {row["workload"] for row in rows} == {f"synthetic-{level}" for level in synthetic.OFFERED_LOAD}
    assert {row["policy"] for row in rows} == set(POLICIES)
    assert all(0 < row["lower_bound_s"] <= row["mean_jct_s"] for row in rows)
    # A quick run never replaces the results of a full one.
    assert [path.name for path in tmp_path.iterdir()] == ["quick"]
    assert sorted(path.name for path in (tmp_path / "quick").iterdir()) == ["elastic.json", "elastic.md", "elastic.png"]
    elastic_command.elastic("weft bench elastic", quick=True, as_json=False, data=None, out=tmp_path)
    assert "doubling over exact" in capsys.readouterr().out


def test_replay_speed_with_crossover_is_measured_where_pairs_form() -> None:
    # Half of every step waits for the network.
    profile = TableProfile({size: StepTime(2.0 / size, 1.0 / size) for size in (1, 2, 4)})
    jobs = [TrueJob(JobSpec(f"job-{index}", float(index), max_workers=4), profile, 2000.0) for index in range(12)]
    rows = replay_speeds([Workload("queue", tuple(jobs))], ["balanced"], Cluster.uniform(4, 4), repeats=1)
    assert [(row["crossover"], row["gpus"]) for row in rows] == [(False, 16), (True, 16), (True, 4)]
    assert rows[-1]["paired_jobs"] > 0


def test_the_policy_that_comes_closest_to_the_default_is_named_for_every_load() -> None:
    workload = synthetic.synthetic_workload("synthetic:moderate:12", num_devices=64)
    rows = load_rows([workload], Cluster.uniform(16, 4), ["balanced", "srtf", "fifo"], (0.5, 2.0))
    assert [row["load"] for row in rows] == [0.5, 2.0]
    assert all(row["closest_policy"] in ("srtf", "fifo") and row["over_default"] > 0 for row in rows)


def test_a_virtual_cluster_has_its_own_jobs_and_just_enough_nodes_for_them() -> None:
    rows = [(0.0, 8, "a"), (100.0, 4, "b"), (600.0, 8, "a"), (1000.0, 8, "a")]
    jobs = []
    for number, (at_s, num, user) in enumerate(rows):
        spec = JobSpec(f"job-{number}", at_s, max_workers=8, requested_workers=num, sizes=(num,), user=user)
        jobs.append(TrueJob(spec, TableProfile({num: StepTime(1.0)}), total_steps=600.0))
    workload, cluster = virtual_cluster(Workload("log", tuple(jobs)), "a")
    # 3 jobs x 8 devices x 600 s in 1,000 s: 14.4 devices.
    assert [job.spec.id for job in workload.jobs] == ["job-0", "job-2", "job-3"]
    assert (workload.name, cluster.devices_by_node) == ("log-a", (8, 8))


def test_a_claim_that_a_later_study_extends_is_reported_once_with_its_last_value() -> None:
    done = Comparison(claims=[at_least("other", 1.0, 1.0)])
    for measured in (1.01, 0.97):
        done.replace_claim(at_least("best other policy", measured, 0.98))
    assert [(claim.text, claim.met) for claim in done.claims] == [("other", True), ("best other policy", False)]


def test_exact_is_never_worse_than_doubling_on_its_own_objective() -> None:
    study = optimality_gaps(own_kinds(), num_instances=60)
    assert min(study.gaps) >= -1e-9
    assert max(study.gaps) > 0
    assert study.row()["instances"] == 60


def test_decision_times_are_reported_for_every_requested_policy() -> None:
    rows = decision_times(own_kinds(), ["balanced", "fifo"], job_counts=(20, 40))
    once = [("balanced", False), ("fifo", False), ("balanced", True)]
    assert [(row["policy"], row["crossover"]) for row in rows] == once * 2
    assert [row["jobs"] for row in rows] == [20, 20, 20, 40, 40, 40]
    assert all(row["worst_ms"] >= row["decision_ms"] > 0 for row in rows)


def test_a_missed_target_is_reported_as_missed() -> None:
    assert at_most("x", 0.5, 0.5).met
    assert not at_most("x", 0.51, 0.5).met
    assert not at_least("x", 1.9, 2.0).met
    top, bottom = {"a": 1.0, "b": 9.0}, {"a": 2.0, "b": 3.0}
    # mean of ratios 1.75, ratio of means 2.0
    assert worse(max, top, bottom, ["a", "b"]) == pytest.approx(2.0)
    assert worse(min, top, bottom, ["a", "b"]) == pytest.approx(1.75)


def test_published_means_are_read_and_broken_files_are_named(tmp_path: Path) -> None:
    for name in ("optimus", "tiresias", "pollux"):
        (tmp_path / f"{name}.json").write_text('{"jcts": {"workload-1": {"a": 10, "b": 30}}}')
    assert means_of(published_times(tmp_path))["pollux"] == {"workload-1": 20.0}
    (tmp_path / "pollux.json").write_text('{"jcts": {"workload-1": {}}}')
    with pytest.raises(InputError, match=r"pollux\.json: expected"):
        published_times(tmp_path)


def test_a_record_says_when_and_where_it_was_made(tmp_path: Path) -> None:
    document = Comparison(tables={"doubling_over_exact": [{"instances": 1}], "loads": []}).document()
    keep_record(tmp_path, "elastic", "weft bench elastic", document, "## table\n")
    kept = json.loads((tmp_path / "elastic.json").read_text())
    assert kept["command"] == "weft bench elastic"
    assert kept["machine"]["cores"] >= 1
    assert kept["date"].endswith("UTC")
    assert kept["rows"] == []
    assert kept["doubling_over_exact"] == [{"instances": 1}]
    assert (tmp_path / "elastic.md").read_text().startswith("# elastic\n\n`weft bench elastic`, 20")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["elastic.json", "elastic.md"]


def test_results_go_where_the_user_says_or_beside_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert results_folder(None) == Path("weft-bench")
    assert results_folder(tmp_path) == tmp_path
    assert results_folder(tmp_path, quick=True) == tmp_path / "quick"
    (tmp_path / "benchmarks" / "results").mkdir(parents=True)
    assert results_folder(None) == Path("benchmarks") / "results"
    with pytest.raises(InputError, match="--out: this folder does not exist"):
        results_folder(tmp_path / "missing")
