"""``weft run --share`` says whether it shares, and the last run leaves no server behind."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

from weft.core.worker_environment import JOB_ID, LEASE
from weft.crossover.lease_launch import status
from weft.crossover.run_lease import RunLease


def test_the_last_run_stops_the_server_and_no_other_does(tmp_path: Path) -> None:
    home = tmp_path / "home"
    first = RunLease.opened(home, "run 1")
    second = RunLease.opened(home, "run 2")
    assert first.path == second.path
    assert first.environment == {LEASE: str(first.path), JOB_ID: "run 1"}
    assert "no other run shares the devices now" in first.in_words()
    first.close()
    assert second.path.exists()
    second.close()
    assert not second.path.exists()


def test_a_run_names_those_it_takes_turns_with() -> None:
    lease = RunLease(Path("/x"), "run 3", ("run 1", "run 2"), -1)
    assert lease.in_words() == "takes turns on the devices with run 1 and run 2"


def test_a_server_too_busy_to_answer_at_once_is_stopped_too(tmp_path: Path) -> None:
    lease = RunLease.opened(tmp_path / "home", "run 1")
    pid = int(status(lease.path)["pid"])
    os.kill(pid, signal.SIGSTOP)
    resume = threading.Timer(1.5, os.kill, (pid, signal.SIGCONT))
    resume.start()
    lease.close()
    resume.join()
    assert not lease.path.exists()
