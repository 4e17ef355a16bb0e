"""Finished jobs are purged by the rule, with their files; jobs that run or wait stay, and so does the journal."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.unit.daemon.awaiting import until, until_over
from tests.unit.daemon.conftest import a_job
from tests.unit.daemon.scripted_engine import ScriptedEngine

from weft.control.reducer import reduce
from weft.control.state import State
from weft.core.cluster import Cluster
from weft.core.duration import parse_duration_s
from weft.core.events import ClockSetBack, Fate, JobsPurged, JobSubmitted
from weft.core.job import JobSpec
from weft.daemon import disk
from weft.daemon.contract import UnknownJobError
from weft.daemon.history import History
from weft.daemon.home import Home
from weft.daemon.recovery import load_state
from weft.daemon.service import Controller
from weft.errors import UsageError
from weft.store import Journal

YEAR_S = 365 * 86400.0
Open = Callable[..., Controller]


def with_files(home: Home, job_id: str) -> Path:
    folder = home.attempts(job_id) / "1"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "rank0.out").write_bytes(b"x" * 10_000)
    (home.checkpoints(job_id) / "step").write_bytes(b"y" * 20_000)
    return home.job_folder(job_id)


@pytest.fixture
def one_over(controller: Controller, engine: ScriptedEngine, home: Home) -> tuple[str, str]:
    """A finished job and a running one, both with files."""
    over, running = controller.submit(a_job()), controller.submit(a_job())
    until(lambda: len(engine.running()) == 2, "workers ordered")
    for job_id in (over, running):
        with_files(home, job_id)
    engine.end(over, 1, Fate.COMPLETED)
    until_over(controller, [over])
    return over, running


def test_a_purge_deletes_only_finished_jobs_even_after_a_restart(
    controller: Controller, one_over: tuple[str, str], home: Home, open_controller: Open
) -> None:
    over, running = one_over
    assert controller.purge(3600.0)["jobs"] == [], "it has not been over for an hour"
    assert controller.purge(1e-9, dry_run=True)["jobs"] == [over]
    assert controller.job(over).id == over
    done = controller.purge(1e-9)
    assert done["jobs"] == [over]
    assert done["freed_bytes"] >= 30_000
    assert not home.job_folder(over).exists()
    assert (home.checkpoints(running) / "step").exists()
    with pytest.raises(UnknownJobError):
        controller.job(over)
    later = controller.submit(a_job())
    again = open_controller()
    assert [job.id for job in again.jobs()] == [running, later]


def test_the_journal_is_small_again_after_a_purge(controller: Controller, engine: ScriptedEngine, home: Home) -> None:
    ids = [controller.submit(a_job(name="long name " * 18)) for _ in range(300)]
    for job_id in ids:
        controller.cancel(job_id)
    until_over(controller, ids)
    size_before = disk.usage(home)["journal"]
    done = controller.purge(1e-9)
    assert len(done["jobs"]) == len(ids)
    assert disk.usage(home)["journal"] < size_before / 2
    assert controller.jobs() == []


def test_a_history_written_during_a_purge_does_not_keep_the_job(
    controller: Controller, one_over: tuple[str, str], home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    remove_folder = shutil.rmtree
    late = home.history_file(one_over[0])

    def interrupted(folder: Path) -> None:
        monkeypatch.setattr(shutil, "rmtree", remove_folder)
        remove_folder(folder / "attempts")
        late.write_text("a line\n")
        folder.rmdir()

    monkeypatch.setattr(shutil, "rmtree", interrupted)
    done = controller.purge(1e-9)
    assert (done["jobs"], done["problems"]) == ([one_over[0]], [])
    assert not late.parent.exists()


def test_a_folder_that_cannot_be_deleted_keeps_its_job(
    controller: Controller, one_over: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    over, _ = one_over

    def fails(folder: Path) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("weft.daemon.retention.shutil.rmtree", fails)
    done = controller.purge(1e-9)
    assert done["jobs"] == []
    assert "its job is kept" in done["problems"][0]
    assert controller.job(over).id == over


@pytest.mark.parametrize("text", ["30", "d", "-1d", "1e3d", "0s", "nan", "30 d", "٣d", "9999999w", "", "1.2345d"])
def test_an_invalid_duration_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="such as 30d"):
        parse_duration_s(text, "--keep")


def test_low_disk_space_is_shown_in_status_and_metrics(
    controller: Controller, home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "weft_disk_free_bytes" in controller.metrics().decode()
    monkeypatch.setattr(disk.Space, "is_low", property(lambda self: True))
    assert "nearly full" in controller.warnings()[0]
    assert "weft_disk_low 1.0" in controller.metrics().decode()


def test_a_clock_that_was_a_year_ahead_is_corrected_after_a_restart(home: Home, engine: ScriptedEngine) -> None:
    with Journal(home.journal_file) as journal:
        state = load_state(journal, engine, History())
        ahead = Controller(home, journal, engine)
        ahead._clock._start_s += YEAR_S  # as if it had been started with the clock wrong
        ahead.start()
        over = ahead.submit(a_job())
        until(lambda: (over, 1) in engine.running(), "workers ordered")
        engine.end(over, 1, Fate.COMPLETED)
        until_over(ahead, [over])
        waiting = ahead.submit(a_job())
        wrong_s = ahead.job(over).finished_s
        assert any("ahead" in words for words in ahead.warnings())
        ahead.shutdown()
        ahead.join()
    engine.reopened()
    with Journal(home.journal_file) as journal:
        state = load_state(journal, engine, History())
        assert isinstance([event for _, event in journal.read()][-1], ClockSetBack)
    assert wrong_s is not None
    for job_id in (over, waiting):
        assert state.jobs[job_id].submitted_s < wrong_s - YEAR_S / 2
    job = state.jobs[over]
    assert job.started_s is not None
    assert job.finished_s is not None
    assert job.submitted_s <= job.started_s <= job.finished_s <= state.now_s


def test_purging_an_unfinished_job_changes_nothing() -> None:
    state, _ = reduce(State(Cluster((2,))), JobSubmitted(1.0, JobSpec("job-1", 1.0)))
    assert reduce(state, JobsPurged(2.0, ("job-1", "job-9")))[0].jobs == state.jobs
