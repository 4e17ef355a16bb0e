"""Problems around a controller: each ends with a clear message and nothing lost."""

from __future__ import annotations

import os
import resource
import signal
import socket
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from tests.crash.conftest import Begin
from tests.crash.driven_controller import ROOT, ControllerDied, DrivenController, check_diary
from tests.crash.test_controller_kill import steps_of, until_step
from tests.hang_limit import HANG_S


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def daemon(home: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """A controller that is expected to refuse."""
    return subprocess.run(
        [sys.executable, "-m", "weft", "up", "--foreground", "--cold", *options],
        capture_output=True,
        text=True,
        timeout=HANG_S,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": f"{ROOT / 'src'}", "WEFT_HOME": str(home)},
    )


def test_a_second_controller_on_one_home_is_refused(controller: DrivenController, tmp_path: Path) -> None:
    second = daemon(tmp_path / "home", "--port", "0")
    assert second.returncode == 1
    assert f"process {controller.pid}" in second.stderr
    assert "Traceback" not in second.stderr
    controller.leave()


def test_a_port_in_use_is_reported(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        refused = daemon(tmp_path / "home", "--port", str(port))
    assert refused.returncode == 1
    assert f"port {port} on 127.0.0.1 is used by another program" in refused.stderr
    assert "Traceback" not in refused.stderr


def test_an_unknown_policy_suggests_the_nearest_name(tmp_path: Path) -> None:
    refused = daemon(tmp_path / "home", "--port", "0", "--policy", "ballanced")
    assert refused.returncode == 2
    assert "did you mean 'balanced'?" in refused.stderr


def test_a_full_disk_acknowledges_nothing_and_work_resumes_when_space_is_free(
    controller: DrivenController, tmp_path: Path
) -> None:
    first = controller.submit(100_000)
    until_step(tmp_path, first, 5)
    pid = controller.pid
    # The controller's files cannot grow, as on a full disk.
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
    with pytest.raises(RuntimeError, match="StoreError"):
        controller.submit(10)
    assert [job["id"] for job in controller.ask("jobs")] == [first]
    before = steps_of(tmp_path, first)
    until_step(tmp_path, first, before + 5)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    second = controller.submit(10)
    assert controller.ask("wait", job_ids=[second], timeout_s=HANG_S) == {second: "COMPLETED"}
    controller.leave()
    check_diary(tmp_path)


def test_the_process_that_holds_the_journal_is_named(begin: Begin, tmp_path: Path) -> None:
    begin().ready().leave()
    with sqlite3.connect(tmp_path / "home" / "journal.sqlite") as holder:
        holder.execute("BEGIN EXCLUSIVE")
        refused = daemon(tmp_path / "home", "--port", "0")
        holder.rollback()
    holder.close()
    assert refused.returncode == 1
    assert f"in use by process {os.getpid()}" in refused.stderr
    begin().ready().leave()


def test_the_journal_of_a_running_controller_cannot_be_locked(controller: DrivenController, tmp_path: Path) -> None:
    first = controller.submit(10)
    with sqlite3.connect(tmp_path / "home" / "journal.sqlite", timeout=0.1) as intruder:
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            intruder.execute("BEGIN EXCLUSIVE")
        second = controller.submit(10)
    intruder.close()
    done = controller.ask("wait", job_ids=[first, second], timeout_s=HANG_S)
    assert done == {first: "COMPLETED", second: "COMPLETED"}
    controller.leave()
    check_diary(tmp_path)


def test_a_damaged_journal_is_not_overwritten_and_workers_keep_running(
    begin: Begin, controller: DrivenController, tmp_path: Path
) -> None:
    job_id = controller.submit(100_000)
    until_step(tmp_path, job_id, 5)
    controller.kill()
    journal = tmp_path / "home" / "journal.sqlite"
    whole, log = journal.read_bytes(), journal.with_name("journal.sqlite-wal").read_bytes()
    damaged = b"\x5a" * len(whole)
    journal.write_bytes(damaged)
    journal.with_name("journal.sqlite-wal").write_bytes(damaged)
    refused = daemon(tmp_path / "home", "--port", "0")
    assert refused.returncode == 1
    assert "`weft repair`" in refused.stderr
    assert "Traceback" not in refused.stderr
    assert journal.read_bytes() == damaged, "evidence was destroyed"
    until_step(tmp_path, job_id, steps_of(tmp_path, job_id) + 5)
    journal.write_bytes(whole)
    journal.with_name("journal.sqlite-wal").write_bytes(log)
    journal.with_name("journal.sqlite-shm").unlink(missing_ok=True)
    controller = begin().ready()
    assert controller.until(job_id, {"RUNNING"})["attempt"] == 1
    controller.leave()


def test_a_worker_killed_from_outside_is_reported_with_its_signal(controller: DrivenController) -> None:
    job_id = controller.submit_command(python("import os, signal; os.kill(os.getpid(), signal.SIGKILL)"))
    assert controller.ask("wait", job_ids=[job_id], timeout_s=HANG_S) == {job_id: "FAILED"}
    assert "SIGKILL" in controller.job(job_id)["reason"]
    controller.leave()


def test_a_job_out_of_memory_fails_with_the_reason(controller: DrivenController) -> None:
    job_id = controller.submit_command(python("raise MemoryError('of the test')"))
    assert controller.ask("wait", job_ids=[job_id], timeout_s=HANG_S) == {job_id: "FAILED"}
    assert "MemoryError" in controller.job(job_id)["reason"]
    controller.leave()


def test_a_stopped_worker_does_not_hold_its_device_forever(controller: DrivenController) -> None:
    job_id = controller.submit_command(python("import os, signal; os.kill(os.getpid(), signal.SIGSTOP)"))
    assert controller.ask("wait", job_ids=[job_id], timeout_s=HANG_S) == {job_id: "FAILED"}
    controller.leave()


def test_a_failing_job_is_restarted_max_restarts_times(controller: DrivenController) -> None:
    job_id = controller.submit_command(python("raise SystemExit(3)"), max_restarts=2)
    assert controller.ask("wait", job_ids=[job_id], timeout_s=HANG_S) == {job_id: "FAILED"}
    assert controller.job(job_id)["attempt"] == 3
    controller.leave()


def test_a_job_whose_script_is_missing_says_so(controller: DrivenController) -> None:
    job_id = controller.submit_command(["no-such-program-of-weft"])
    assert controller.ask("wait", job_ids=[job_id], timeout_s=HANG_S) == {job_id: "FAILED"}
    assert "no-such-program-of-weft" in controller.job(job_id)["reason"]
    controller.leave()


def test_fewer_devices_than_running_jobs_hold_are_refused(
    begin: Begin, controller: DrivenController, tmp_path: Path
) -> None:
    ids = [controller.submit(100_000), controller.submit(100_000)]
    for job_id in ids:
        until_step(tmp_path, job_id, 5)
    controller.kill()
    with pytest.raises(ControllerDied):
        begin(num_devices=1).ready()
    assert "start it with the same number as before" in (tmp_path / "controller.err").read_text()
    controller = begin().ready()
    assert {job["attempt"] for job in controller.ask("jobs")} == {1}
    controller.leave()


def test_no_process_is_left_after_a_shutdown_with_jobs(controller: DrivenController, tmp_path: Path) -> None:
    job_id = controller.submit(100_000)
    until_step(tmp_path, job_id, 5)
    controller.ask("shutdown", stop_jobs=True)
    assert controller.close() == 0
    mark = str(tmp_path).encode()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes()
        except OSError:
            continue
        assert mark not in command or int(process.name) == os.getpid(), f"left behind: {command!r}"


def test_a_signal_ends_the_controller_but_not_its_workers(begin: Begin, tmp_path: Path) -> None:
    controller = begin().ready()
    job_id = controller.submit(100_000)
    until_step(tmp_path, job_id, 5)
    os.kill(controller.pid, signal.SIGTERM)
    controller.close()
    until_step(tmp_path, job_id, steps_of(tmp_path, job_id) + 5)
    begin().ready().leave()
