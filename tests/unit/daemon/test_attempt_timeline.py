"""Who had which devices when is known from the journal, whenever the dashboard is opened."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.unit.daemon.awaiting import until, until_over
from tests.unit.daemon.conftest import a_job
from tests.unit.daemon.scripted_engine import ScriptedEngine

from api_caller import ask, own_headers
from fake_controller import TOKEN, FakeController
from weft.control.state import State
from weft.core.cluster import Cluster
from weft.core.events import Fate, JobsPurged, NodeRepaired, ProgressReported, WorkersExited, WorkersStarted
from weft.core.step_report import Progress
from weft.daemon.api.app import make_app
from weft.daemon.attempt_bars import MAX_BARS, AttemptBar, AttemptBars, between
from weft.daemon.service import Controller
from weft.store import Journal

Open = Callable[..., Controller]


def test_an_attempt_that_outlived_its_controller_is_one_bar() -> None:
    past, live = AttemptBars(), AttemptBars()
    past.note(WorkersStarted(1.0, "a", 1, (0, 1)))
    past.note(WorkersExited(2.0, "a", 1, Fate.STOPPED))
    past.note(WorkersStarted(3.0, "a", 2, (0,)))
    live.note(WorkersExited(5.0, "a", 2, Fate.COMPLETED))
    live.note(WorkersStarted(6.0, "b", 1, (1,)))
    live.note(WorkersStarted(6.0, "purged", 1, (1,)))
    bars = live.after(past, ["a", "b"])
    assert bars == [
        AttemptBar("a", 1, 1.0, (0, 1), 2.0),
        AttemptBar("a", 2, 3.0, (0,), 5.0),
        AttemptBar("b", 1, 6.0, (1,), None),
    ]
    assert [bar.attempt for bar in between(bars, 2.5, 4.0)] == [2]
    assert between(bars, 100.0, 200.0) == [bars[-1]]
    live.note(JobsPurged(7.0, ("b",)))
    assert live.after(AttemptBars(), ["a", "b"]) == []


def test_the_number_of_bars_is_bounded() -> None:
    timeline = AttemptBars()
    for attempt in range(1, MAX_BARS + 50):
        timeline.note(WorkersStarted(float(attempt), "a", attempt, (0,)))
    bars = timeline.after(AttemptBars(), ["a"])
    assert len(bars) == MAX_BARS
    assert bars[-1].attempt == MAX_BARS + 49


def test_the_timeline_reaches_back_before_this_controller(open_controller: Open, engine: ScriptedEngine) -> None:
    controller = open_controller()
    job_id = controller.submit(a_job(name="resnet"))
    until(lambda: len(controller.timeline(0.0, 1e12)) == 1, "a bar")
    controller = open_controller()
    (bar,) = controller.timeline(0.0, 1e12)
    assert (bar.job_id, bar.attempt, bar.devices, bar.end_s) == (job_id, 1, engine.orders[job_id, 1].devices, None)
    engine.end(job_id, 1, Fate.COMPLETED)
    until_over(controller, [job_id])
    for one in (controller, open_controller()):
        (bar,) = one.timeline(0.0, 1e12)
        assert bar.end_s is not None
        assert bar.end_s >= bar.start_s


def test_days_of_progress_reports_do_not_push_starts_out_of_the_journal(tmp_path: Path) -> None:
    state = State(Cluster.uniform(1, 1))
    with Journal(tmp_path / "j.sqlite", num_kept_events=20) as journal:
        journal.append([WorkersStarted(0.0, "a", 1, (0,))])
        for batch in range(5):
            journal.append([ProgressReported(1.0, "a", 1, Progress(step)) for step in range(100)])
            journal.append([NodeRepaired(float(batch), 0)])
            journal.save_snapshot(journal.seq, state)
        kept = [event for _, event in journal.read()]
        assert kept[0] == WorkersStarted(0.0, "a", 1, (0,))
        assert sum(isinstance(event, ProgressReported) for event in kept) == 100  # since the older of two snapshots
        assert sum(isinstance(event, NodeRepaired) for event in kept) == 5


def test_the_answer_names_devices_and_jobs() -> None:
    controller = FakeController()
    job = controller.add(name="resnet")
    controller.bars = [
        AttemptBar(job.id, 1, 10.0, (0, 2), 20.0),
        AttemptBar(job.id, 2, 30.0, (1,)),
        AttemptBar("unknown1", 1, 1.0, (0,)),
    ]
    app = make_app(controller, TOKEN, port=8477)
    answer = ask(app, "GET", "/v1/timeline?since_s=5&until_s=40", own_headers())
    assert answer.json() == {
        "since_s": 5.0,
        "until_s": 40.0,
        "bars": [
            {
                "job": job.id,
                "name": "resnet",
                "attempt": attempt,
                "start_s": start_s,
                "end_s": end_s,
                "devices": devices,
                "workers": len(devices),
            }
            for attempt, start_s, end_s, devices in (
                (1, 10.0, 20.0, ["here/0", "there/0"]),
                (2, 30.0, None, ["here/1"]),
            )
        ],
    }
    refused = ask(app, "GET", "/v1/timeline?since_s=9&until_s=3", own_headers())
    assert refused.status == 400
    assert "until_s" in refused.json()["error"]
    assert ask(app, "GET", "/v1/timeline?since_s=nan", own_headers()).status == 422
