"""The controller as `weft up` starts it: a process with two doors, talked to by the client."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.crash.driven_controller import JOB, LIMIT_S, ROOT

from weft.client import Client
from weft.core.job import Launch
from weft.core.submission import Submission
from weft.daemon.home import Home


class Server:
    """One ``python -m weft.daemon``."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.home = folder, Home(folder / "home")
        self.log = (folder / "server.log").open("ab")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "weft.daemon", str(self.home.root), "--port", "0", "--devices", "2", "--cold"],
            stdout=self.log,
            stderr=self.log,
            cwd="/",
            env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
        )
        deadline_s = time.monotonic() + LIMIT_S
        while (record := self.home.read_record()) is None or record.pid != self.process.pid:
            assert self.process.poll() is None, (folder / "server.log").read_text()
            assert time.monotonic() < deadline_s
            time.sleep(0.02)
        self.record = record
        self.client = Client(self.home.root)

    def submit(self, num_steps: int) -> str:
        argv = (sys.executable, str(JOB), str(num_steps), "0.02", str(self.folder / "diary"))
        return self.client.submit(Submission(Launch(argv, str(self.folder)), title="counts"))

    def end(self) -> int:
        code = self.process.wait(LIMIT_S)
        self.log.close()
        return code


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    made = Server(tmp_path)
    yield made
    if not made.log.closed:
        made.client.shutdown(stop_jobs=True)
        made.end()


def test_job_goes_through_both_ends(server: Server) -> None:
    job_id = server.submit(10)
    (row,) = server.client.wait([job_id], timeout_s=LIMIT_S)
    assert (row["id"], row["state"], row["step"]) == (job_id, "COMPLETED", 10)
    assert any("completed" in sentence["sentence"] for sentence in server.client.explain(job_id))
    assert 'weft_jobs{state="COMPLETED"} 1.0' in server.client.metrics()


def test_doors_are_private(server: Server) -> None:
    assert server.home.api_socket.stat().st_mode & 0o777 == 0o600
    assert server.home.sockets.stat().st_mode & 0o777 == 0o700
    with socket.create_connection(("127.0.0.1", server.record.port)) as connection:
        connection.sendall(b"GET /v1/jobs HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n\r\n" % server.record.port)
        assert connection.recv(64).startswith(b"HTTP/1.1 401 ")


def test_token_is_in_no_argument_and_no_log(server: Server, tmp_path: Path) -> None:
    token = server.home.token().encode()
    server.client.health()
    assert token not in Path(f"/proc/{server.process.pid}/cmdline").read_bytes()
    assert token not in Path(f"/proc/{server.process.pid}/environ").read_bytes()
    assert token not in (tmp_path / "server.log").read_bytes()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_ends_the_server_in_order_and_jobs_go_on(server: Server, number: signal.Signals, tmp_path: Path) -> None:
    job_id = server.submit(100_000)
    deadline_s = time.monotonic() + LIMIT_S
    while server.client.job(job_id)["state"] != "RUNNING":
        assert time.monotonic() < deadline_s
        time.sleep(0.02)
    server.process.send_signal(number)
    assert server.end() == 0, (tmp_path / "server.log").read_text()
    assert server.home.read_record() is None
    assert server.home.holder() is None
    assert not server.home.api_socket.exists()
    again = Server(tmp_path)
    job = again.client.job(job_id)
    assert (job["state"], job["attempt"]) == ("RUNNING", 1)
    again.client.shutdown(stop_jobs=True)
    assert again.end() == 0
