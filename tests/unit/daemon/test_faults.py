"""Whatever goes wrong with the engine, a report, an event, or an attempt: the loop continues, and reports it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.hang_limit import HANG_S
from tests.unit.daemon.awaiting import until, until_over
from tests.unit.daemon.conftest import a_job
from tests.unit.daemon.scripted_engine import ScriptedEngine

from weft.control import reducer
from weft.control.state import JobState
from weft.core.events import Fate, JobSubmitted, NodeRepaired, WorkersExited, WorkersStarted
from weft.core.job import JobSpec
from weft.core.step_report import Progress, StepReport
from weft.daemon.home import Home
from weft.daemon.service import Controller
from weft.errors import ControllerError, StoreError
from weft.store import Journal


def failing(draft: object, event: object) -> None:
    raise RuntimeError("a mistake of the reducer")


def counted(controller: Controller, where: str) -> bool:
    return f'weft_faults_total{{where="{where}"}}' in controller.metrics().decode()


def completes(controller: Controller, engine: ScriptedEngine) -> None:
    job_id = controller.submit(a_job())
    until(lambda: (job_id, 1) in engine.running(), "workers ordered")
    engine.end(job_id, 1, Fate.COMPLETED)
    assert until_over(controller, [job_id])[job_id].state is JobState.COMPLETED


def test_an_engine_that_cannot_be_polled_ends_no_job(controller: Controller, engine: ScriptedEngine) -> None:
    running = controller.submit(a_job())
    until(lambda: (running, 1) in engine.running(), "workers ordered")
    engine.num_failing_polls = 1 << 60
    engine.end(running, 1, Fate.COMPLETED)
    until(lambda: counted(controller, "engine.poll"), "the fault")
    assert controller.job(running).state is JobState.RUNNING
    engine.num_failing_polls = 0
    assert until_over(controller, [running])[running].state is JobState.COMPLETED
    completes(controller, engine)


def test_an_invalid_report_is_blamed_on_its_job(
    controller: Controller, engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = controller.submit(a_job())
    until(lambda: (job_id, 1) in engine.running(), "workers ordered")

    def fails(*args: object) -> bool:
        raise ZeroDivisionError("in a model")

    monkeypatch.setattr(controller._knowledge, "reported", fails)
    report = StepReport(job_id, 1, 0, 1, Progress(1, step_s=0.1))
    monkeypatch.setattr(controller._channel, "receive", lambda fence: iter([report]))
    controller._loop.request(lambda state, now_s: ((), controller._loop._take_reports(now_s))).result()
    assert counted(controller, "a report")
    assert "ZeroDivisionError" in controller.job(job_id).reason
    assert "ZeroDivisionError" in controller.explain(job_id)[-1].text
    engine.end(job_id, 1, Fate.COMPLETED)
    assert "internal error" not in until_over(controller, [job_id])[job_id].reason


def test_an_event_the_reducer_fails_on_is_skipped_now_and_after_a_restart(
    open_controller: Callable[..., Controller], engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(reducer._HANDLERS, WorkersStarted, failing)
    controller = open_controller()
    job_id = controller.submit(a_job())
    until(lambda: counted(controller, "an event"), "the fault")
    assert "a mistake of the reducer" in controller.job(job_id).reason
    assert any("skipped 1 event that could not be applied" in words for words in controller.warnings())
    controller = open_controller()
    engine.end(job_id, 1, Fate.COMPLETED)
    assert until_over(controller, [job_id])[job_id].state is JobState.COMPLETED


def test_a_job_the_reducer_fails_on_is_refused_and_never_acknowledged(
    controller: Controller, engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setitem(reducer._HANDLERS, JobSubmitted, failing)
        with pytest.raises(ControllerError, match="nothing was changed: a mistake of the reducer"):
            controller.submit(a_job())
    assert counted(controller, "an event")
    assert controller.jobs() == []
    assert [event for _, event in controller._journal.read() if isinstance(event, JobSubmitted)] == []
    completes(controller, engine)


def test_an_exit_event_that_could_not_be_applied_is_repeated_to_the_next_controller(
    open_controller: Callable[..., Controller], engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    controller = open_controller()
    job_id = controller.submit(a_job())
    until(lambda: (job_id, 1) in engine.running(), "workers ordered")
    with monkeypatch.context() as patched:
        patched.setitem(reducer._HANDLERS, WorkersExited, failing)
        engine.end(job_id, 1, Fate.COMPLETED)
        until(lambda: counted(controller, "an event"), "the fault")
        assert controller.job(job_id).state is JobState.RUNNING
        assert "a mistake of the reducer" in controller.job(job_id).reason
        controller.shutdown()
        controller.join()
    assert until_over(open_controller(), [job_id])[job_id].state is JobState.COMPLETED


def test_a_journal_whose_acknowledged_job_cannot_be_applied_is_not_used_unless_the_loss_is_accepted(
    engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch, home: Home
) -> None:
    """As a journal of a newer weft would be, or one that was damaged and repaired."""
    with Journal(home.journal_file) as journal:
        spec = JobSpec("k3v9x2qa", submitted_s=1.0)
        journal.append([JobSubmitted(1.0, spec, launch=a_job().launch), NodeRepaired(2.0, 0)])
    for kind in (JobSubmitted, NodeRepaired):
        monkeypatch.setitem(reducer._HANDLERS, kind, failing)
    with Journal(home.journal_file) as journal:
        with pytest.raises(StoreError, match=r"JobSubmitted of job k3v9x2qa.*acknowledged.*--accept-loss"):
            Controller(home, journal, engine)
        assert len(list(journal.read())) == 2, "nothing was written or dropped"
    accepting = Controller(home, Journal(home.journal_file), engine, accept_loss=True)
    assert any("skipped 2 events that could not be applied" in words for words in accepting.warnings())
    assert 'weft_faults_total{where="an event"} 2.0' in accepting.metrics().decode()
    accepting.start()
    accepting.shutdown()
    accepting.join()


def test_an_engine_that_raises_anything_at_a_start_costs_that_attempt(
    controller: Controller, engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, names = engine.start, []

    def start(order: object) -> None:
        names.append(order)
        if len(names) == 1:
            raise ValueError("embedded null byte")
        real(order)  # type: ignore[arg-type]

    monkeypatch.setattr(engine, "start", start)
    job_id = controller.submit(a_job())
    until(lambda: (job_id, 2) in engine.running(), "started again")
    engine.end(job_id, 2, Fate.COMPLETED)
    assert until_over(controller, [job_id])[job_id].state is JobState.COMPLETED


def test_a_home_that_is_unwritable_for_a_while_costs_no_attempt(
    controller: Controller, engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(order: object) -> None:
        raise PermissionError(13, "Permission denied", "engine/orders")

    with monkeypatch.context() as patched:
        patched.setattr(engine, "start", denied)
        job_id = controller.submit(a_job())
        until(lambda: "Permission denied" in controller.job(job_id).reason, "the fault")
    until(lambda: (job_id, 1) in engine.running(), "the fault")
    engine.end(job_id, 1, Fate.COMPLETED)
    assert until_over(controller, [job_id])[job_id].attempt == 1


def test_a_request_that_cannot_be_journaled_is_refused_without_harm(
    controller: Controller, engine: ScriptedEngine
) -> None:
    with pytest.raises(ControllerError, match=r"nothing was changed.*finite"):
        controller._loop.request(lambda state, now_s: ([WorkersStarted(float("inf"), "x", 1)], None)).result(HANG_S)
    completes(controller, engine)


def test_status_and_explain_show_why_an_attempt_is_waiting(controller: Controller, engine: ScriptedEngine) -> None:
    job_id = controller.submit(a_job())
    until(lambda: (job_id, 1) in engine.running(), "workers ordered")
    engine.troubles[job_id, 1] = "the process that starts workers (7) was stopped by a signal"
    engine._tell(WorkersStarted(0.0, job_id, 1))
    until(lambda: "stopped by a signal" in controller.job(job_id).reason, "the fault")
    assert "stopped by a signal" in controller.explain(job_id)[-1].text
    assert "weft_attempts_troubled 1.0" in controller.metrics().decode()
