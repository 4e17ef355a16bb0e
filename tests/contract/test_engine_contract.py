"""What the controller relies on, whatever runs the workers."""

from __future__ import annotations

import select

import pytest
from tests.contract.benches import Bench, events_until, is_end, said, start, wait_for
from tests.contract.conftest import SHORT_ON_RAY

from weft.core.events import Fate, WorkersExited, WorkersStarted

HOSTILE_IDS = [
    "../../etc/passwd",
    "a'; echo foo",
    "$(reboot)",
    "new\nline",
    "\u202etxt.exe",
    ".hidden",
    "a@2",
    "%2e%2e",
    "ü" * 20,
]


def test_a_job_runs_to_its_end_and_each_event_is_reported_once(bench: Bench, job_id: str) -> None:
    start(bench, job_id, "finish")
    told = events_until(bench, job_id, 1, WorkersExited)
    mine = [event for event in told if event.job_id == job_id]
    assert [type(event) for event in mine] == [WorkersStarted, WorkersExited]
    assert mine[0].at_s <= mine[1].at_s
    assert isinstance(mine[1], WorkersExited)
    assert (mine[1].fate, mine[1].exit_code) == (Fate.COMPLETED, 0)
    assert [event for event in bench.engine.poll() if event.job_id == job_id] == []


def test_a_job_started_twice_is_reported_once(bench: Bench, job_id: str) -> None:
    start(bench, job_id, "finish")
    start(bench, job_id, "finish")
    told = events_until(bench, job_id, 1, WorkersExited)
    start(bench, job_id, "finish")
    told += bench.engine.poll()
    assert [type(event) for event in told if event.job_id == job_id] == [WorkersStarted, WorkersExited]


def test_a_job_started_twice_runs_once(bench: Bench, job_id: str) -> None:
    start(bench, job_id, "finish")
    start(bench, job_id, "finish")
    wait_for(bench, job_id)
    start(bench, job_id, "finish")
    bench.reopen()
    start(bench, job_id, "finish")
    wait_for(bench, job_id)
    assert bench.num_starts(job_id, 1) == 1


def test_a_forgotten_job_is_not_restarted_and_its_output_is_kept(bench: Bench, job_id: str) -> None:
    start(bench, job_id, "finish")
    wait_for(bench, job_id)
    bench.engine.forget(job_id, 1)
    assert (job_id, 1) not in bench.engine.known()
    start(bench, job_id, "finish")
    assert bench.num_starts(job_id, 1) == 1
    assert bench.output(job_id, 1, 0) == "done\n"


def test_a_running_job_cannot_be_forgotten(bench: Bench, job_id: str) -> None:
    start(bench, job_id, "wait")
    bench.engine.forget(job_id, 1)
    assert (job_id, 1) in bench.engine.known()
    bench.engine.kill(job_id, 1)
    wait_for(bench, job_id)


def test_an_outcome_is_known_however_long_the_controller_was_away(bench: Bench, job_id: str) -> None:
    start(bench, job_id, "fail")
    first = wait_for(bench, job_id)
    for _ in range(2):
        bench.reopen()
        assert (job_id, 1) in bench.engine.known()
        assert wait_for(bench, job_id) == first
    bench.engine.forget(job_id, 1)
    bench.reopen()
    assert (job_id, 1) not in bench.engine.known()


def test_workers_keep_running_while_the_controller_is_away(bench: Bench, job_id: str) -> None:
    start(bench, job_id, "save")
    said(bench, job_id, "training")
    bench.reopen()
    told = events_until(bench, job_id, 1, WorkersStarted)
    assert not any(is_end(event, job_id, 1) for event in told)
    bench.engine.stop(job_id, 1)
    assert wait_for(bench, job_id).fate is Fate.STOPPED
    assert bench.num_starts(job_id, 1) == 1


def test_a_job_asked_to_stop_saves_even_if_asked_repeatedly(bench: Bench, job_id: str) -> None:
    start(bench, job_id, "save")
    for rank in range(2):
        said(bench, job_id, "training", rank=rank)
    for _ in range(3):
        bench.engine.stop(job_id, 1)
    ended = wait_for(bench, job_id)
    assert ended.fate is Fate.STOPPED
    assert not any(is_end(event, job_id, 1) for event in bench.engine.poll())
    if not bench.is_simulated:
        assert ended.exit_code == 75
        assert all("saved" in bench.output(job_id, 1, rank) for rank in range(2))


def test_a_script_without_a_stop_handler_can_be_stopped(bench: Bench, job_id: str) -> None:
    start(bench, job_id, "wait")
    said(bench, job_id, "waiting")
    bench.engine.stop(job_id, 1)
    ended = wait_for(bench, job_id)
    assert ended.fate is Fate.STOPPED
    assert bench.is_simulated or ended.exit_code == 143


def test_a_job_stopped_before_it_started_never_runs(bench: Bench, job_id: str) -> None:
    start(bench, job_id, "wait")
    bench.engine.stop(job_id, 1)
    assert wait_for(bench, job_id).fate is Fate.STOPPED


def test_stopping_an_old_attempt_does_not_affect_the_next(bench: Bench, job_id: str) -> None:
    for attempt, devices in enumerate([(0,), (1, 2), (0, 1, 2, 3)], 1):
        start(bench, job_id, "wait", attempt=attempt, devices=devices)
        events_until(bench, job_id, attempt, WorkersStarted)
        bench.engine.stop(job_id, attempt - 1)
        bench.engine.kill(job_id, attempt - 1)
        bench.engine.stop(job_id, attempt)
        assert wait_for(bench, job_id, attempt).fate is Fate.STOPPED
    assert {(job_id, attempt) for attempt in (1, 2, 3)} <= set(bench.engine.known())


def test_a_killed_job_ends(bench: Bench, job_id: str) -> None:
    start(bench, job_id, "save")
    said(bench, job_id, "training")
    bench.engine.kill(job_id, 1)
    bench.engine.kill(job_id, 1)
    assert wait_for(bench, job_id).fate in (Fate.STOPPED, Fate.LOST)
    assert bench.is_simulated or "saved" not in bench.output(job_id, 1, 0)


def test_a_job_killed_while_saving_ends(bench: Bench, job_id: str) -> None:
    start(bench, job_id, "wait")
    bench.engine.stop(job_id, 1)
    bench.engine.kill(job_id, 1)
    assert wait_for(bench, job_id).fate is Fate.STOPPED


def test_a_failure_comes_with_its_exit_code_and_a_reason(bench: Bench, job_id: str) -> None:
    if bench.is_simulated:
        pytest.skip("no script fails by itself in a simulation")
    start(bench, job_id, "fail")
    ended = wait_for(bench, job_id)
    assert (ended.fate, ended.exit_code) == (Fate.FAILED, 7)
    assert "worker 0" in ended.reason


def test_a_second_attempt_has_its_own_processes_and_output(bench: Bench, job_id: str) -> None:
    start(bench, job_id, "save")
    said(bench, job_id, "training")
    bench.engine.stop(job_id, 1)
    assert wait_for(bench, job_id, 1).fate is Fate.STOPPED
    start(bench, job_id, "finish", attempt=2, devices=(1, 2, 3))
    bench.engine.stop(job_id, 1)
    bench.engine.kill(job_id, 1)
    assert wait_for(bench, job_id, 2).fate is Fate.COMPLETED
    assert bench.is_simulated or (bench.num_starts(job_id, 1), bench.num_starts(job_id, 2)) == (1, 1)


def test_output_is_separated_by_attempt_and_rank(bench: Bench, job_id: str) -> None:
    if bench.is_simulated:
        pytest.skip("nobody says anything in a simulation")
    start(bench, job_id, "save")
    for rank in range(2):
        said(bench, job_id, "training", rank=rank)
    bench.engine.stop(job_id, 1)
    wait_for(bench, job_id, 1)
    start(bench, job_id, "finish", attempt=2, devices=(3,))
    wait_for(bench, job_id, 2)
    assert [bench.output(job_id, 1, rank) for rank in range(3)] == ["training\nsaved\n", "training\nsaved\n", ""]
    assert [bench.output(job_id, 2, rank) for rank in range(2)] == ["done\n", ""]


def test_the_end_of_one_job_does_not_end_another(bench: Bench, job_id: str) -> None:
    start(bench, job_id, "save", devices=(0,))
    start(bench, f"{job_id}-other", "wait", devices=(1,))
    said(bench, job_id, "training")
    said(bench, f"{job_id}-other", "waiting")
    bench.engine.kill(f"{job_id}-other", 1)
    wait_for(bench, f"{job_id}-other")
    assert bench.engine.poll() == []
    bench.engine.stop(job_id, 1)
    assert wait_for(bench, job_id).fate is Fate.STOPPED


def test_an_unknown_job_is_ignored(bench: Bench) -> None:
    before = list(bench.engine.known())
    for call in (bench.engine.stop, bench.engine.kill, bench.engine.forget):
        call("nobody", 1)
    assert bench.engine.poll() == []
    assert list(bench.engine.known()) == before


@pytest.mark.parametrize("hostile", HOSTILE_IDS)
def test_hostile_job_ids_are_treated_as_plain_names(bench: Bench, hostile: str) -> None:
    start(bench, hostile, "finish", devices=(0,))
    assert (hostile, 1) in bench.engine.known()
    ended = wait_for(bench, hostile)
    assert (ended.job_id, ended.fate) == (hostile, Fate.COMPLETED)
    bench.engine.forget(hostile, 1)
    assert (hostile, 1) not in bench.engine.known()
    assert bench.is_simulated or bench.output(hostile, 1, 0) == "done\n"


def test_an_idle_engine_does_not_wake_its_caller(bench: Bench, job_id: str) -> None:
    start(bench, job_id, "finish")
    wait_for(bench, job_id)
    while bench.engine.poll():
        continue
    if bench.engine.fileno() >= 0:
        ready, _, _ = select.select([bench.engine.fileno()], [], [], 0.2)
        while ready and not bench.engine.poll():  # a keeper's very end, heard of through the zygote
            ready, _, _ = select.select([bench.engine.fileno()], [], [], 0.2)
        assert ready == []


def test_an_engine_reports_its_devices(bench: Bench) -> None:
    assert sum(node.num_devices for node in bench.engine.nodes()) == 4


def test_every_test_in_the_short_version_for_ray_exists() -> None:
    """A renamed test would silently not run on Ray any more."""
    assert set(globals()) >= SHORT_ON_RAY
