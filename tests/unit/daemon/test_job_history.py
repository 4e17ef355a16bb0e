"""A job's history covers its whole life, stays small, and outlives the controller."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.daemon.awaiting import until, until_over
from tests.unit.daemon.conftest import a_job
from tests.unit.daemon.scripted_engine import ScriptedEngine

from weft.core.events import Fate
from weft.core.step_report import Progress, StepReport
from weft.daemon import job_series
from weft.daemon.home import Home
from weft.daemon.job_series import MAX_MARKS, JobMark, JobSeries
from weft.daemon.service import Controller

Open = Callable[..., Controller]


def a_report(step: int = 0, step_s: float = 0.1, loss: float | None = 1.0, **more: Any) -> StepReport:
    values: dict[str, Any] = {"rank": 0, "memory_bytes": 100, "takes_turns": True, **more}
    return StepReport("k3v9x2qa", 1, world_size=2, progress=Progress(step, None, step_s, 0.02, loss), **values)


def series_of(num_reports: int, every_s: float = 0.2) -> JobSeries:
    series = JobSeries()
    for number in range(num_reports):
        series.reported(a_report(step=2 * number, loss=1.0 / (number + 1)), number * every_s)
    return series


FEW = 50
"""So many points are kept here: tests fill a history again and again."""


@pytest.fixture(scope="module", autouse=True)
def _few_points() -> Iterator[None]:
    with mock.patch.object(job_series, "MAX_POINTS", FEW):
        yield


@given(num_reports=st.integers(1, 8 * FEW), every_s=st.floats(0.05, 100.0))
def test_however_long_a_job_runs_its_points_are_few_and_cover_all_of_it(num_reports: int, every_s: float) -> None:
    series = series_of(num_reports, every_s)
    rows = series.point_rows()
    assert len(rows) <= FEW
    assert sum(point.num_reports for point in series.points) == num_reports
    assert rows[-1]["step"] == 2 * (num_reports - 1)
    times = [row["time_s"] for row in rows]
    assert times == sorted(times)
    assert times[0] <= max(every_s * num_reports / (FEW / 10), 1.0)


def test_a_point_averages_its_reports_and_unknown_values_are_none() -> None:
    series = JobSeries()
    series.reported(a_report(step=1, step_s=0.1, loss=2.0), 10.0)
    series.reported(a_report(step=3, step_s=0.3, loss=4.0), 10.4)
    series.reported(a_report(rank=1, memory_bytes=900), 10.5)
    series.reported(a_report(step=5, step_s=0.2, loss=None, takes_turns=False), 12.0)
    first, second = series.point_rows()
    assert (first["step"], first["step_s"], first["loss"]) == (3, pytest.approx(0.2), pytest.approx(3.0))
    assert first["exposed_share"] == pytest.approx(0.1)
    assert (second["loss"], second["exposed_share"], second["memory_bytes"]) == (None, None, 900)
    assert second["steps_per_s"] == pytest.approx(2 / 1.6)


def test_step_phases_are_the_mean_of_recent_reports() -> None:
    series = JobSeries()
    assert series.phases is None
    for forward_s in (0.01, 0.03):
        series.reported(a_report(phases=(forward_s, 0.04, 0.005), turn_wait_s=0.002), 1.0)
    assert series.phases == {
        "forward_s": pytest.approx(0.02),
        "backward_s": pytest.approx(0.04),
        "exposed_s": pytest.approx(0.02),
        "update_s": pytest.approx(0.005),
        "turn_wait_s": pytest.approx(0.002),
    }


@given(st.lists(st.floats(-1.7e308, 1.7e308), min_size=2, max_size=40))
def test_any_number_a_job_reports_can_be_written(losses: list[float]) -> None:
    series = JobSeries()
    for number, loss in enumerate(losses):
        series.reported(a_report(loss=loss, step_s=abs(loss)), number * 0.1)
    text, _ = series.unwritten()
    assert JobSeries.restored(text).point_rows() == series.point_rows()


@given(st.lists(st.integers(0, 2 * FEW), min_size=1, max_size=6), st.integers(1, 200))
def test_a_history_written_in_pieces_reads_as_a_whole(pieces: list[int], num_cut: int) -> None:
    series, text, number = JobSeries(), "", 0
    series.mark(JobMark(0.0, "started", 2, "started with 2 workers", 1))
    for piece in pieces:
        for _ in range(piece):
            series.reported(a_report(step=number), number * 0.7)
            number += 1
        added, whole = series.unwritten()
        text = added if whole else text + added
    restored = JobSeries.restored(text)
    assert restored.point_rows() == series.point_rows()
    assert restored.marks == series.marks
    assert restored.interval_s == series.interval_s
    # Killed in the middle of a write: all but the last lines are there, and the next write repairs the file.
    left = text[:-num_cut]
    cut = JobSeries.restored(left)
    assert len(cut.points) >= len(series.points) - text[-num_cut:].count("\n")
    added, whole = cut.unwritten()
    assert JobSeries.restored(added if whole else left + added).point_rows() == cut.point_rows()


def test_a_damaged_file_costs_only_its_damaged_lines() -> None:
    text, _ = series_of(50).unwritten()
    lines = text.splitlines(keepends=True)
    damaged = "".join(["nonsense\n", *lines, '["point",0,"a"]\n', '["mark"]\n', "[]\n", "{}\n"])
    assert JobSeries.restored(damaged).point_rows() == JobSeries.restored(text).point_rows()


def test_a_restart_is_marked_with_what_changed_and_why() -> None:
    series = JobSeries()
    series.mark(JobMark(1.0, "started", 1, "started with 1 worker", 1))
    series.mark(JobMark(2.0, "started", 4, "started with 4 workers", 2))
    series.last_end = "failed: exit code 3"
    series.mark(JobMark(3.0, "started", 4, "started with 4 workers", 3))
    assert [(mark.kind, mark.text) for mark in series.marks] == [
        ("started", "started with 1 worker"),
        ("resized", "resized from 1 to 4 workers"),
        ("restarted", "restarted with 4 workers after it failed: exit code 3"),
    ]
    for number in range(2 * MAX_MARKS):
        series.mark(JobMark(4.0 + number, "started", 1 + number % 2, "", 4 + number))
    assert len(series.marks) <= MAX_MARKS
    assert series.marks[0].kind == "started"


# With a controller ---------------------------------------------------------------------------------------------------


def send(home: Home, job_id: str, attempt: int, step: int, **more: object) -> None:
    message = {"kind": "step", "job_id": job_id, "attempt": attempt, "rank": 0, "world_size": 1, "step": step}
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        message |= {"step_s": 0.1, "metrics": {"loss": 0.5}, "memory_bytes": 1 << 20, **more}
        channel.sendto(json.dumps(message).encode(), str(home.channel_socket))


def kinds(controller: Controller, job_id: str) -> list[str]:
    return [mark["kind"] for mark in controller.history(job_id)["marks"]]


def test_a_completed_job_still_shows_its_whole_life_to_the_next_controller(
    open_controller: Open, engine: ScriptedEngine, home: Home
) -> None:
    controller = open_controller()
    job_id = controller.submit(a_job(total_steps=100))
    until(lambda: kinds(controller, job_id) == ["started"], "started")
    send(home, job_id, 1, 7, phases=[0.01, 0.02, 0.003])
    until(lambda: bool(controller.history(job_id)["points"]), "a point")
    controller = open_controller()
    assert [point["step"] for point in controller.history(job_id)["points"]] == [7]
    send(home, job_id, 1, 100)
    until(lambda: controller.job(job_id).progress.step == 100, "the last step")
    engine.end(job_id, 1, Fate.COMPLETED)
    until_over(controller, [job_id])
    controller = open_controller()
    history = controller.history(job_id)
    assert history["id"] == job_id
    assert [point["step"] for point in history["points"]] == [7, 100]
    assert [mark["kind"] for mark in history["marks"]] == ["started", "finished"]
    assert history["marks"][-1]["text"].startswith("completed")
    assert history["phases"] is not None
    assert history["phases"]["backward_s"] == pytest.approx(0.02)


def test_a_killed_controller_loses_no_mark(open_controller: Open, engine: ScriptedEngine, home: Home) -> None:
    controller = open_controller()
    job_id = controller.submit(a_job())
    until(lambda: kinds(controller, job_id) == ["started"], "started")
    controller = open_controller()
    home.history_file(job_id).unlink()  # as if it had been killed before it wrote any of it
    assert kinds(controller, job_id) == ["started"]
    engine.end(job_id, 1, Fate.COMPLETED)
    until_over(controller, [job_id])
    until(lambda: home.history_file(job_id).exists(), "written")
    controller = open_controller()
    home.history_file(job_id).unlink()
    assert kinds(controller, job_id) == ["finished"]


def test_a_job_that_never_ran_has_an_empty_history(controller: Controller, engine: ScriptedEngine) -> None:
    for _ in range(4):
        controller.submit(a_job())
    waiting = controller.submit(a_job())
    assert controller.history(waiting) == {"id": waiting, "points": [], "marks": [], "speeds": [], "phases": None}
    controller.cancel(waiting)
    assert kinds(controller, waiting) == ["finished"]


def test_a_purged_job_leaves_no_history_behind(open_controller: Open, engine: ScriptedEngine, home: Home) -> None:
    controller = open_controller()
    job_id = controller.submit(a_job())
    until(lambda: kinds(controller, job_id) == ["started"], "started")
    engine.end(job_id, 1, Fate.COMPLETED)
    until_over(controller, [job_id])
    controller.purge(1e-9)
    open_controller()
    assert not home.job_folder(job_id).exists()


def test_a_restart_says_what_happened_to_the_attempt_before_it(
    open_controller: Open, engine: ScriptedEngine, home: Home
) -> None:
    controller = open_controller()
    job_id = controller.submit(a_job())
    until(lambda: (job_id, 1) in engine.running(), "workers ordered")
    engine.end(job_id, 1, Fate.LOST, 137, "killed by signal 9")
    until(lambda: kinds(controller, job_id) == ["started", "restarted"], "restarted")
    assert "killed by signal 9" in controller.history(job_id)["marks"][-1]["text"]


def test_a_running_job_beyond_its_new_limits_restarts_within_them(
    controller: Controller, engine: ScriptedEngine, home: Home
) -> None:
    job_id = controller.submit(a_job(min_workers=2, max_workers=2, total_steps=1000))
    until(lambda: kinds(controller, job_id) == ["started"], "started")
    send(home, job_id, 1, 7, can_resume=True, world_size=2)
    until(lambda: bool(controller.history(job_id)["points"]), "a point")
    controller.change_job(job_id, min_workers=1, max_workers=1)
    until(lambda: kinds(controller, job_id) == ["started", "resized"], "resized")
    assert len(engine.orders[job_id, 2].devices) == 1
    assert controller.history(job_id)["marks"][-1]["text"] == "resized from 2 to 1 worker"
