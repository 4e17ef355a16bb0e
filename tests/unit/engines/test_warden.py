"""Workers of a node that is cut off from its cluster are ended; those of a node that is not are left alone."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from weft.engines.local.process import MARK
from weft.engines.ray import warden

LIMIT_S = 120.0


@pytest.fixture
def engine(tmp_path: Path) -> Path:
    (tmp_path / "engine").mkdir()
    return tmp_path / "engine"


@pytest.fixture
def worker(engine: Path) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "1000"], env={**os.environ, MARK: str(engine)}) as started:
        yield started
        started.kill()


@pytest.fixture
def raylet() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "1000"]) as started:
        yield started
        started.kill()


def test_workers_are_killed_when_their_raylet_exits(
    engine: Path, worker: subprocess.Popen[bytes], raylet: subprocess.Popen[bytes]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as head:
        address = f"127.0.0.1:{head.getsockname()[1]}"
        command = [sys.executable, "-m", "weft.engines.ray.warden", str(engine), str(raylet.pid), address]
        subprocess.run(command, check=True, timeout=LIMIT_S)
        assert worker.poll() is None
        raylet.kill()
        assert worker.wait(LIMIT_S) == -signal.SIGKILL


def test_workers_are_killed_when_the_head_stays_unreachable(
    engine: Path, worker: subprocess.Popen[bytes], raylet: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(warden, "FENCE_S", 0.1)
    monkeypatch.setattr(warden, "LOOK_EVERY_S", 0.05)
    monkeypatch.setattr(warden, "is_reachable", lambda head: False)
    handle = os.pidfd_open(raylet.pid)
    watching = threading.Thread(target=warden.watch, args=(engine, handle, "head:6379"))
    watching.start()
    try:
        assert worker.wait(LIMIT_S) == -signal.SIGKILL
    finally:
        (engine / warden.CLOSED).touch()
        watching.join(LIMIT_S)
        os.close(handle)
    assert not watching.is_alive()


def test_a_restarting_head_kills_no_worker() -> None:
    with socket.create_server(("127.0.0.1", 0)) as head:
        address = f"127.0.0.1:{head.getsockname()[1]}"
        assert warden.is_reachable(address)
    assert warden.is_reachable(address), "connections are refused, so it can be reached"


def test_only_processes_of_this_engine_are_killed(
    engine: Path, worker: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    with subprocess.Popen(["sleep", "1000"], env={**os.environ, MARK: str(tmp_path / "other")}) as other:
        warden.end_all(engine)
        assert worker.wait(LIMIT_S) == -signal.SIGKILL
        assert other.poll() is None
        other.kill()
