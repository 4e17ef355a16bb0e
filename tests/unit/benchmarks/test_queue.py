"""``weft bench queue`` without a cluster: what is asked of each contender, and what becomes of a played queue."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from benchmarks.intervals import NO_INTERVAL
from benchmarks.queue_command import is_late, keys, planned, plays, quick_queue, submission
from benchmarks.queue_models import MODELS
from benchmarks.queue_plan import CONTENDERS, QUEUE, QueueContender, StartCosts, simulated
from benchmarks.queue_plot import draw
from benchmarks.queue_results import brief_queue, headline_queue, keep
from benchmarks.queue_rows import Counters, SpanRecorder, gain_shares, key_of, make_row, summaries
from benchmarks.record import RowRecord
from benchmarks.start_cost import restart_cost_s, start_cost_s

from weft.demo.contest import Completion, Played
from weft.errors import ControllerError

COSTS = dict.fromkeys(MODELS, StartCosts(1.0, 1.5))
ROOT = Path(__file__).parents[3]


def looked(job: str, devices: list[int], partner: str | None = None, state: str = "RUNNING") -> Any:
    return {"id": job, "name": job, "state": state, "devices": devices, "partner": partner, "loss": 0.5}


def played(contender: QueueContender, number: int = 1, num_hosts: int = 2) -> dict[str, Any]:
    """A row as if the simulator had been right."""
    result = simulated(contender, QUEUE, num_hosts, COSTS)
    recorder = SpanRecorder()
    for job in result.jobs:
        recorder.look(job.started_s, [looked(job.name, [0])])
        recorder.look(job.finished_s, [looked(job.name, [], state="COMPLETED")])
    done = Played(tuple(Completion(job.name, job.submitted_s, job.completion_s, 0) for job in result.jobs))
    return make_row(contender, QUEUE, num_hosts, number, done, recorder, Counters(50.0, (10**8, 10**8), COSTS))


def test_every_way_trains_the_same_steps_and_only_elastic_ones_change_sizes(tmp_path: Path) -> None:
    assert len(QUEUE) >= 12
    assert {job.model for job in QUEUE} == set(MODELS)
    assert all(job.asked_workers >= MODELS[job.model].min_workers for job in QUEUE)
    for job in QUEUE:
        asked = {name: submission(job, contender, 2, tmp_path) for name, contender in CONTENDERS.items()}
        assert len({one.total_steps for one in asked.values()}) == 1
        fixed = asked["fifo_ddp"]
        assert fixed.min_workers == fixed.max_workers == job.asked_workers
        assert asked["elastic_ddp"].max_workers == 2
        assert "ddp" in asked["elastic_ddp"].launch.argv
        assert "overlap" in asked["elastic_overlap"].launch.argv
    assert [contender.shares for contender in CONTENDERS.values()] == [False, False, False, True]
    assert [job.name for job in quick_queue()] == [job.name for job in QUEUE]


def test_each_round_plays_every_way_once_and_another_one_first() -> None:
    wanted = plays([2], 2, ["a", "b", "c"])
    assert wanted == [(2, 1, "a"), (2, 1, "b"), (2, 1, "c"), (2, 2, "b"), (2, 2, "c"), (2, 2, "a")]
    assert len(keys(quick=False)) == 3 * 2 * len(CONTENDERS)


def test_a_quick_queue_plays_only_the_two_ends_of_the_comparison_unless_others_are_asked_for() -> None:
    first, *_, last = CONTENDERS
    assert planned(quick=True) == [(2, 1, first), (2, 1, last)]
    assert planned(quick=True, contenders=["elastic_ddp"], rounds=2) == [(2, 1, "elastic_ddp"), (2, 2, "elastic_ddp")]
    assert sum(keys(quick=True).values()) < 5.0


def test_a_limit_starts_no_play_that_would_end_long_after_it() -> None:
    play = (2, 1, "fifo_ddp")  # 2.5 minutes
    assert is_late(play, 60.0, quick=False)
    assert not is_late(play, 90.0, quick=False)
    assert not is_late(play, 60.0, quick=True)


def test_a_row_says_what_was_measured_next_to_what_the_simulator_said() -> None:
    row = played(CONTENDERS["fifo_ddp"])
    assert row["mean_s"] == pytest.approx(row["simulated_mean_s"], rel=0.01)
    assert row["device_utilization"] == pytest.approx(25.0 / row["makespan_s"], abs=1e-3)
    assert 0 < row["link_utilization"] < 1
    assert row["p90_s"] > row["mean_s"]
    assert len(row["jobs"]) == len(row["spans"]) == len(QUEUE)
    json.dumps(row)


def test_a_span_ends_when_devices_or_the_partner_change() -> None:
    recorder = SpanRecorder()
    recorder.look(0.0, [looked("a", [])])
    recorder.look(1.0, [looked("a", [0])])
    recorder.look(2.0, [looked("a", [0, 1]), looked("b", [])])
    recorder.look(3.0, [looked("a", [0, 1], "b"), looked("b", [0, 1], "a")])
    recorder.look(5.0, [looked("a", [], state="COMPLETED"), looked("b", [0, 1])])
    recorder.look(6.0, [looked("a", [], state="COMPLETED"), looked("b", [0, 1], state="COMPLETED")])
    assert recorder.spans == [
        ("a", 1.0, 2.0, (0,), ""),
        ("a", 2.0, 3.0, (0, 1), ""),
        ("a", 3.0, 5.0, (0, 1), "b"),
        ("b", 3.0, 5.0, (0, 1), "a"),
        ("b", 5.0, 6.0, (0, 1), ""),
    ]


def test_shares_of_the_gain_sum_to_one_and_a_layer_that_costs_shows_it() -> None:
    shares = gain_shares([10.0, 4.0, 5.0, 2.0])
    assert shares[0] is None
    assert sum(share or 0.0 for share in shares) == pytest.approx(1.0)
    assert (shares[2] or 0.0) < 0
    assert gain_shares([1.0, 2.0]) == [None, None]


def test_the_page_and_the_picture_come_from_whatever_was_played(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    record = RowRecord(tmp_path, "queue", "weft bench queue")
    for number in (1, 2):
        for name in ("fifo_ddp", "elastic_overlap"):
            record.put(key_of(2, number, name), played(CONTENDERS[name], number))
    record.put(key_of(4, 1, "fifo_ddp"), played(CONTENDERS["fifo_ddp"], num_hosts=4))
    keep(record)
    text = record.path("md").read_text()
    assert "## 2 hosts" in text
    assert "## 4 hosts" in text
    assert "| elastic, overlap | 2 |" in text
    draw(record.document(), tmp_path / "queue.png")
    assert (tmp_path / "queue.png").read_bytes().startswith(b"\x89PNG")
    first, second = summaries(record.rows, 2)
    assert first.faster is None
    assert second.faster is not None
    assert second.share == pytest.approx(1.0)


def test_three_rounds_have_an_interval_next_to_every_ratio_and_one_round_says_that_it_has_none(tmp_path: Path) -> None:
    names = ("fifo_ddp", "elastic_ddp", "elastic_overlap_crossover")
    record = RowRecord(tmp_path, "queue", "weft bench queue")
    for number in (1, 2, 3):
        for place, name in enumerate(names):
            row = played(CONTENDERS[name], number)
            record.put(key_of(2, number, name), {**row, "mean_s": 80.0 / (1 + 0.5 * place) + number * place})
        keep(record)
        made = [
            record.path("md").read_text(),
            *map("\n".join, (brief_queue(record.document()), headline_queue(record.document()))),
        ]
        for text in made:
            assert (NO_INTERVAL in text) == (number == 1)
            ratios = re.findall(r"\d\.\d\dx[^|]*", text)
            assert len(ratios) >= 2
            assert all(("(" in ratio) == (number > 1) for ratio in ratios)


@pytest.mark.parametrize("sync", ["ddp", "overlap"])
def test_a_job_runs_on_three_workers_although_its_batch_does_not_divide_by_three(tmp_path: Path, sync: str) -> None:
    words = ("--model", "bert-base", "--steps", "2", "--sync", sync, "--notes", str(tmp_path))
    command = [sys.executable, "-m", "weft", "run", "--workers", "3", "benchmarks/queue_job.py", *words]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "WEFT_CHECKPOINT_DIR": str(tmp_path / "checkpoints")}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert len(list(tmp_path.glob("*.json"))) == 3


def test_a_start_never_costs_less_than_nothing() -> None:
    """Seen on a busy machine: -1 s, which the simulator refuses."""
    assert start_cost_s(took_s=5.0, num_steps=40, step_s=0.1) == pytest.approx(1.0)
    assert start_cost_s(took_s=5.0, num_steps=40, step_s=0.15) > 0.0


class ScriptedController:
    """A client that sees one job in these states, one after the other."""

    def __init__(self, *rows: dict[str, Any]) -> None:
        self.rows = list(rows)
        self.drained: list[tuple[str, bool]] = []

    def submit(self, submission: Any) -> str:
        return "job"

    def job(self, job: str) -> dict[str, Any]:
        return self.rows.pop(0) if len(self.rows) > 1 else self.rows[0]

    def nodes(self) -> list[dict[str, Any]]:
        return [{"name": "a", "devices": [{"jobs": []}]}, {"name": "b", "devices": [{"jobs": ["job"]}]}]

    def drain(self, name: str, *, resume: bool = False) -> None:
        self.drained.append((name, resume))


def seen(attempt: int, step: int, ran_s: float, state: str = "RUNNING", devices: tuple[int, ...] = (0, 1)) -> Any:
    return {"attempt": attempt, "step": step, "ran_s": ran_s, "state": state, "devices": list(devices)}


@pytest.mark.parametrize("waits", [False, True])
def test_a_restart_costs_what_it_adds_to_the_steps_that_are_left(waits: bool) -> None:
    pause = [seen(1, 7, 3.0, "PENDING", ())] if waits else []
    rows = [seen(1, 0, 0.5), seen(1, 2, 1.2), *pause, seen(2, 7, 3.0), seen(2, 9, 5.0), seen(2, 20, 8.0, "COMPLETED")]
    controller: Any = ScriptedController(*rows)
    job: Any = None
    assert restart_cost_s(controller, job, num_steps=20, step_s=0.25) == pytest.approx(5.0 - 13 * 0.25)
    assert controller.drained == [("b", False), ("b", True)]


def test_a_node_is_not_left_drained_by_a_job_that_ended_before_it_was_stopped() -> None:
    controller: Any = ScriptedController(seen(1, 2, 1.0), seen(1, 20, 5.0, "COMPLETED"))
    job: Any = None
    with pytest.raises(ControllerError, match="expected it to be restarted once"):
        restart_cost_s(controller, job, num_steps=20, step_s=0.2)
    assert controller.drained == [("b", False), ("b", True)]
