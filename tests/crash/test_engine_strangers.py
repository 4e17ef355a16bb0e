"""Pids are used again: a process that is not ours is never signalled, whatever our files say."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.contract.benches import LocalBench, wait_for

from weft.core.events import Fate
from weft.engines.local.process import MARK, Process, left_behind


@pytest.fixture
def stranger() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "1000"], start_new_session=True) as process:
        yield process
        process.kill()


def claimed_by(home: Path, keeper: Process) -> None:
    """A home with an attempt whose keeper is, so the files say, this process."""
    folder = home / "jobs" / "job" / "attempts" / "1"
    folder.mkdir(parents=True)
    claim = {"pid": keeper.pid, "start_ticks": keeper.start_ticks, "boot_id": keeper.boot_id}
    (folder / "claim.json").write_text(json.dumps(claim))
    orders = home / "engine" / "orders"
    orders.mkdir(parents=True)
    order = {"job_id": "job", "attempt": 1, "argv": ["true"], "cwd": "/", "environment": {}, "cores_by_rank": [[0]]}
    (orders / "job@1.json").write_text(json.dumps(order))


@pytest.mark.parametrize("difference", ["started at another time", "in another boot"])
def test_an_unrelated_process_with_the_keepers_pid_is_not_killed(
    tmp_path: Path, stranger: subprocess.Popen[bytes], difference: str
) -> None:
    found = Process.of(stranger.pid)
    assert found is not None
    if difference == "in another boot":
        claimed_by(tmp_path, Process(found.pid, found.start_ticks, "an older boot"))
    else:
        claimed_by(tmp_path, Process(found.pid, found.start_ticks - 1, found.boot_id))
    bench = LocalBench(tmp_path, warm=False)
    try:
        bench.engine.stop("job", 1)
        bench.engine.kill("job", 1)
        assert wait_for(bench, "job").fate is Fate.LOST
        assert stranger.poll() is None
    finally:
        bench.close()


def test_processes_without_our_mark_are_not_left_behind_by_our_keeper(
    tmp_path: Path, stranger: subprocess.Popen[bytes]
) -> None:
    found = Process.of(stranger.pid)
    assert found is not None
    assert left_behind(found, str(tmp_path), "job", 1, tmp_path) == []


def test_processes_marked_by_another_engine_are_not_touched(tmp_path: Path) -> None:
    environment = {**os.environ, MARK: str(tmp_path / "other"), "WEFT_JOB_ID": "job", "WEFT_ATTEMPT": "1"}
    program = [sys.executable, "-c", "print('up', flush=True); input()"]
    with subprocess.Popen(
        program, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    ) as other:
        assert other.stdout is not None
        other.stdout.readline()
        found = Process.of(other.pid)
        assert found is not None
        assert left_behind(found, str(tmp_path / "mine"), "job", 1, tmp_path) == []
        assert left_behind(found, str(tmp_path / "other"), "job", 2, tmp_path) == [found]  # by its session
        elsewhere = Process(1, 0, found.boot_id)
        assert left_behind(elsewhere, str(tmp_path / "other"), "job", 1, tmp_path) == [found]  # by its job
        assert left_behind(elsewhere, str(tmp_path / "other"), "job", 2, tmp_path) == []
        other.communicate(b"\n")
