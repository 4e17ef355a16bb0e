"""The controller's promises, on an engine without processes."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.api_caller import PORT, ask, own_headers
from tests.fake_controller import TOKEN
from tests.hang_limit import HANG_S
from tests.unit.daemon.awaiting import until, until_over, until_state
from tests.unit.daemon.conftest import a_job
from tests.unit.daemon.scripted_engine import ScriptedEngine

from weft.control.state import JobState
from weft.core.events import Fate, JobSubmitted
from weft.core.job import Launch
from weft.core.submission import Submission
from weft.daemon.api.app import make_app
from weft.daemon.clock import SteadyClock
from weft.daemon.contract import ConflictError, NodeStatus, StoppingError, UnknownJobError
from weft.daemon.home import Home
from weft.daemon.service import Controller
from weft.errors import StoreError, UsageError
from weft.sim.queue_forecast import Question
from weft.store import Journal

Open = Callable[..., Controller]


def test_acknowledged_job_is_in_the_journal(controller: Controller, home: Home) -> None:
    job_id = controller.submit(a_job(name="resnet"))
    written = [event.spec.id for _, event in controller._journal.read() if isinstance(event, JobSubmitted)]
    assert written == [job_id]
    assert controller.job(job_id).name == "resnet"


def test_a_job_runs_to_completion(controller: Controller, engine: ScriptedEngine) -> None:
    job_id = controller.submit(a_job())
    until(lambda: (job_id, 1) in engine.running(), "workers ordered")
    assert len(engine.orders[job_id, 1].devices) == 1
    engine.end(job_id, 1, Fate.COMPLETED)
    assert until_over(controller, [job_id])[job_id].state is JobState.COMPLETED
    controller.shutdown()
    controller.join()
    assert ("forget", job_id, 1) in engine.calls


def test_workers_get_the_channel_checkpoint_folder_job_and_attempt(
    controller: Controller, engine: ScriptedEngine, home: Home
) -> None:
    job_id = controller.submit(a_job())
    until(lambda: (job_id, 1) in engine.orders, "workers ordered")
    environment = engine.orders[job_id, 1].environment
    assert environment["WEFT_JOB_ID"] == job_id
    assert environment["WEFT_ATTEMPT"] == "1"
    assert environment["WEFT_CHANNEL"] == str(home.channel_socket)
    assert environment["WEFT_CHECKPOINT_DIR"] == str(home.checkpoints(job_id))
    assert home.checkpoints(job_id).is_dir()


def test_many_clients_at_once_get_one_id_each(controller: Controller) -> None:
    ids: list[str] = []

    def client() -> None:
        ids.extend(controller.submit(a_job()) for _ in range(10))

    clients = [threading.Thread(target=client) for _ in range(8)]
    for thread in clients:
        thread.start()
    for thread in clients:
        thread.join()
    assert len(set(ids)) == 80
    assert {job.id for job in controller.jobs()} == set(ids)


def test_a_waiting_job_that_is_canceled_never_starts(controller: Controller, engine: ScriptedEngine) -> None:
    first = [controller.submit(a_job()) for _ in range(4)]
    until(lambda: len(engine.running()) == 4, "all devices in use")
    waiting = controller.submit(a_job())
    controller.cancel(waiting)
    assert controller.job(waiting).state is JobState.CANCELLED
    engine.end(first[0], 1, Fate.COMPLETED)
    until_over(controller, [first[0]])
    assert all(job_id != waiting for job_id, _ in engine.orders)


def test_cancel_stops_and_a_second_cancel_kills(open_controller: Open, engine: ScriptedEngine) -> None:
    engine.obedient = False
    controller = open_controller()
    job_id = controller.submit(a_job())
    until(lambda: (job_id, 1) in engine.running(), "workers ordered")
    controller.cancel(job_id)
    assert controller.job(job_id).state is JobState.STOPPING
    until(lambda: ("stop", job_id, 1) in engine.calls, "stop asked for")
    controller.cancel(job_id)
    assert until_over(controller, [job_id])[job_id].state is JobState.CANCELLED
    assert ("kill", job_id, 1) in engine.calls


def test_unknown_job_is_named(controller: Controller) -> None:
    for question in (controller.job, controller.cancel, controller.explain, controller.logs):
        with pytest.raises(UnknownJobError, match="no job 'nosuchid'"):
            question("nosuchid")


def test_a_job_too_large_for_the_cluster_is_refused_with_what_to_do(controller: Controller) -> None:
    with pytest.raises(UsageError, match=r"job gpt wants at least 9 workers, this cluster has 4 devices: lower"):
        controller.submit(a_job(name="gpt", min_workers=9, max_workers=9))
    assert controller.jobs() == []


def test_a_job_beyond_its_users_quota_is_refused_instead_of_waiting_forever(open_controller: Open) -> None:
    controller = open_controller(quotas={"ana": 2})
    with pytest.raises(UsageError, match=r"job gpt wants at least 3 workers, the quota of ana is 2: lower"):
        controller.submit(a_job(name="gpt", min_workers=3, max_workers=3, user="ana"))
    assert controller.jobs() == []
    controller.submit(a_job(name="gpt", min_workers=2, max_workers=3, user="ana"))


def test_explain_covers_the_time_before_a_controller_restart(open_controller: Open, engine: ScriptedEngine) -> None:
    controller = open_controller()
    job_id = controller.submit(a_job(max_workers=2))
    until(lambda: (job_id, 1) in engine.running(), "workers ordered")
    controller = open_controller()
    story = [sentence.text for sentence in controller.explain(job_id)]
    assert story[0] == "submitted, for 1 to 2 workers"
    assert any("1 worker" in text for text in story)
    times = [sentence.at_s for sentence in controller.explain(job_id)]
    assert times == sorted(times)


def test_silent_job_keeps_its_devices(open_controller: Open, engine: ScriptedEngine) -> None:
    controller = open_controller(policy="srtf", hold_s=0.0)
    silent = controller.submit(a_job(min_workers=4, max_workers=4))
    until(lambda: (silent, 1) in engine.running(), "workers ordered")
    urgent = controller.submit(a_job(total_steps=1, priority=9))
    until(lambda: controller.job(urgent).reason_code == "Reserved", "a decision about the second job")
    assert controller.job(silent).state is JobState.RUNNING
    assert controller.job(silent).reason_code == "AsRequested"
    assert not [call for call in engine.calls if call[0] == "stop"]


def test_a_job_whose_workers_cannot_be_started_gets_a_reason(open_controller: Open, engine: ScriptedEngine) -> None:
    engine.refuse_starts = True
    controller = open_controller()
    job_id = controller.submit(a_job())
    job = until_over(controller, [job_id])[job_id]
    assert job.state is JobState.FAILED
    assert "limit on processes" in job.reason


def test_down_with_jobs_leaves_no_worker_and_keeps_the_queue(open_controller: Open, engine: ScriptedEngine) -> None:
    controller = open_controller()
    job_id = controller.submit(a_job())
    until(lambda: (job_id, 1) in engine.running(), "workers ordered")
    controller.shutdown(stop_jobs=True)
    controller.join()
    assert engine.running() == []
    controller = open_controller()
    until(lambda: (job_id, 2) in engine.running(), "the job goes on")


def test_down_leaves_workers_alone(open_controller: Open, engine: ScriptedEngine) -> None:
    controller = open_controller()
    job_id = controller.submit(a_job())
    until(lambda: (job_id, 1) in engine.running(), "workers ordered")
    controller.shutdown()
    controller.join()
    assert engine.running() == [(job_id, 1)]
    with pytest.raises(StoppingError, match="weft up"):
        controller.submit(a_job())


def test_a_job_that_ended_while_the_controller_was_away_is_completed_and_shows_its_last_step(
    open_controller: Open, engine: ScriptedEngine, home: Home
) -> None:
    controller = open_controller()
    job_id = controller.submit(a_job(total_steps=1000))
    until(lambda: (job_id, 1) in engine.running(), "workers ordered")
    controller.shutdown()
    controller.join()
    for name in ("step-000000000400", "step-000000001000", ".damaged-step-000000002000"):
        (home.checkpoints(job_id) / name).mkdir()
    engine.end(job_id, 1, Fate.COMPLETED)
    controller = open_controller()
    job = until_over(controller, [job_id])[job_id]
    assert (job.state, job.progress.step, job.progress.total_steps) == (JobState.COMPLETED, 1000, 1000)
    assert engine.num_starts == {(job_id, 1): 1}


def test_full_disk_refuses_new_jobs_and_loses_no_outcome(
    controller: Controller, engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = controller.submit(a_job())
    until(lambda: (job_id, 1) in engine.running(), "workers ordered")
    append, refused = Journal.append, threading.Event()

    def full(journal: Journal, events: object) -> int:
        refused.set()
        raise StoreError("the disk is full: make room")

    monkeypatch.setattr(Journal, "append", full)
    with pytest.raises(StoreError, match="make room"):
        controller.submit(a_job())
    refused.clear()
    engine.end(job_id, 1, Fate.COMPLETED)
    assert refused.wait(HANG_S), "the outcome was never tried to be written"
    assert controller.job(job_id).state is JobState.RUNNING
    monkeypatch.setattr(Journal, "append", append)
    assert until_over(controller, [job_id])[job_id].state is JobState.COMPLETED
    assert len(controller.jobs()) == 1


def test_nodes_show_which_job_has_which_device(controller: Controller, engine: ScriptedEngine) -> None:
    job_id = controller.submit(a_job(min_workers=2, max_workers=2))
    until_state(controller, job_id, JobState.RUNNING)
    (node,) = controller.nodes()
    assert node.status is NodeStatus.UP
    assert sorted(node.devices) == [0, 1, 2, 3]
    assert sum(holders == (job_id,) for holders in node.devices.values()) == 2


def test_the_outlook_of_a_script_that_cannot_be_resized_is_the_size_it_will_keep(
    controller: Controller, tmp_path: Path
) -> None:
    (tmp_path / "plain.py").write_text("print()")
    script = Submission(Launch(("python", "plain.py"), str(tmp_path)), max_workers=2)
    outlook = controller.outlook(script)
    job_id = controller.submit(script)
    until(lambda: controller.job(job_id).state is JobState.RUNNING, "the job")
    assert outlook["workers"] == len(controller.job(job_id).devices) == 2


def test_outlook_changes_nothing(controller: Controller) -> None:
    outlook = controller.outlook(a_job(max_workers=4))
    assert outlook["workers"] == 1
    assert (outlook["reason_code"], outlook["reason"].startswith("1 worker ")) == ("Exploring", True)
    assert controller.jobs() == []


def test_metrics_count_jobs_and_devices(controller: Controller, engine: ScriptedEngine) -> None:
    job_id = controller.submit(a_job())
    until_state(controller, job_id, JobState.RUNNING)
    text = controller.metrics().decode()
    assert 'weft_jobs{state="RUNNING"} 1.0' in text
    assert "weft_devices 4.0" in text
    assert "weft_devices_busy 1.0" in text


def test_hostile_names_go_through_unchanged(open_controller: Open) -> None:
    name = "a'; $(echo foo)\n‮../../etc"
    controller = open_controller()
    job_id = controller.submit(Submission(Launch(("python", "x y; rm -rf"), "/"), name=name))
    controller = open_controller()
    assert controller.job(job_id).name == name
    assert controller.job(job_id).launch == Launch(("python", "x y; rm -rf"), "/")


def test_a_clock_set_back_while_the_controller_is_away_does_not_reverse_time(
    open_controller: Open, home: Home, engine: ScriptedEngine
) -> None:
    controller = open_controller()
    first = controller.submit(a_job())
    until(lambda: (first, 1) in engine.running(), "workers ordered")
    controller.shutdown()
    controller.join()
    engine.reopened()
    late = Controller(
        home,
        Journal(home.journal_file),
        engine,
        paranoid=True,
        clock=lambda floor_s: SteadyClock(floor_s, wall=lambda: time.time() - 3600.0),
    )
    late.start()
    second = late.submit(a_job())
    engine.end(first, 1, Fate.COMPLETED)
    done = until_over(late, [first])[first]
    assert done.finished_s is not None
    assert done.started_s is not None
    assert done.finished_s >= done.started_s
    assert late.job(second).submitted_s >= done.submitted_s
    late.shutdown()
    late.join()


def test_a_forecast_covers_the_queue_and_changes_nothing(controller: Controller, engine: ScriptedEngine) -> None:
    ids = [controller.submit(a_job(name=f"job {number}", total_steps=10)) for number in range(6)]
    until(lambda: len(engine.running()) == 4, "all devices in use")
    answer = controller.whatif(Question(devices=8))
    assert {job["id"] for job in answer["plan"]["jobs"]} == set(ids)
    assert (answer["plan"]["devices"], answer["whatif"]["devices"]) == (4, 8)
    assert len(engine.running()) == 4
    with pytest.raises(UnknownJobError):
        controller.whatif(Question(jobs={"nothere1": {"weight": 2.0}}))
    with pytest.raises(UsageError, match="min_workers <= max_workers"):
        controller.whatif(Question(jobs={ids[0]: {"min_workers": 3}}))


def test_a_changed_job_gets_what_it_may_now_have(controller: Controller, engine: ScriptedEngine) -> None:
    running = [controller.submit(a_job()) for _ in range(4)]
    until(lambda: len(engine.running()) == 4, "all devices in use")
    waiting = controller.submit(a_job(max_workers=2))
    controller.change_job(waiting, weight=3.0, priority=2, max_workers=4)
    spec = controller.job(waiting).spec
    assert (spec.weight, spec.priority, spec.min_workers, spec.max_workers) == (3.0, 2, 1, 4)
    changed = "changed: weight is now 3, priority is now 2, maximum number of workers is now 4"
    assert changed in [sentence.text for sentence in controller.explain(waiting)]
    with pytest.raises(UsageError, match="min_workers <= max_workers"):
        controller.change_job(waiting, min_workers=5)
    with pytest.raises(UsageError, match="this cluster has 4 devices"):
        controller.change_job(waiting, min_workers=5, max_workers=8)
    with pytest.raises(UsageError, match="nothing to change"):
        controller.change_job(waiting)
    with pytest.raises(ConflictError, match="cannot be resized without losing its work"):
        controller.change_job(running[0], min_workers=2, max_workers=4)
    engine.end(running[0], 1, Fate.COMPLETED)
    until_over(controller, [running[0]])
    with pytest.raises(ConflictError, match="already COMPLETED"):
        controller.change_job(running[0], weight=2.0)
    with pytest.raises(UnknownJobError):
        controller.change_job("nothere1", weight=2.0)


def test_a_batch_range_for_a_plain_script_is_refused_by_the_rest_api(controller: Controller, tmp_path: Path) -> None:
    (tmp_path / "plain.py").write_text("print(1)")
    (tmp_path / "session.py").write_text("import weft")
    app = make_app(controller, TOKEN, port=PORT)
    job = {"cwd": str(tmp_path), "max_workers": 4, "batch": "64:256"}
    headers = own_headers(content_type="application/json")
    plain, session = (json.dumps({**job, "command": ["python", name]}).encode() for name in ("plain.py", "session.py"))
    for path in ("/v1/jobs", "/v1/outlook"):
        answer = ask(app, "POST", path, headers, plain)
        assert answer.status == 400
        assert "run.loader" in answer.json()["error"]
    assert controller.jobs() == []
    assert ask(app, "POST", "/v1/jobs", headers, session).status == 201
