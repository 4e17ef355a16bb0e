"""The controller as `weft up` starts it: a process with a socket and a port, used through the client."""

from __future__ import annotations

import contextlib
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.hang_limit import HANG_S

from controller_process import Server


@contextlib.contextmanager
def running(folder: Path) -> Iterator[Server]:
    made = Server(folder)
    yield made
    if not made.log.closed:
        made.client.shutdown(stop_jobs=True)
        made.end()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """For a test that ends it."""
    with running(tmp_path) as made:
        yield made


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """For tests that leave it as it was."""
    with running(tmp_path_factory.mktemp("shared")) as made:
        yield made


def test_a_job_submitted_over_the_socket_completes(shared: Server) -> None:
    job_id = shared.submit(10)
    (row,) = shared.client.wait([job_id], timeout_s=HANG_S)
    assert (row["id"], row["state"], row["step"]) == (job_id, "COMPLETED", 10)
    assert any("completed" in sentence["sentence"] for sentence in shared.client.explain(job_id))
    num_completed = sum(row["state"] == "COMPLETED" for row in shared.client.jobs())
    assert f'weft_jobs{{state="COMPLETED"}} {num_completed:.1f}' in shared.client.metrics()


def test_the_socket_is_private_and_the_port_needs_a_token(shared: Server) -> None:
    assert shared.home.api_socket.stat().st_mode & 0o777 == 0o600
    assert shared.home.sockets.stat().st_mode & 0o777 == 0o700
    with socket.create_connection(("127.0.0.1", shared.record.port)) as connection:
        connection.sendall(b"GET /v1/jobs HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n\r\n" % shared.record.port)
        assert connection.recv(64).startswith(b"HTTP/1.1 401 ")


def test_the_port_is_bound_on_the_loopback_address_only(shared: Server) -> None:
    lines = [
        line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]
    ]
    port = f":{shared.record.port:04X}"
    assert {line[1] for line in lines if line[3] == "0A" and line[1].endswith(port)} == {f"0100007F{port}"}


def test_the_token_is_in_no_argument_and_no_log(shared: Server) -> None:
    token = shared.home.token().encode()
    shared.client.health()
    assert token not in Path(f"/proc/{shared.process.pid}/cmdline").read_bytes()
    assert token not in Path(f"/proc/{shared.process.pid}/environ").read_bytes()
    assert token not in shared.log_file.read_bytes()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_shuts_the_server_down_cleanly_and_jobs_keep_running(
    server: Server, number: signal.Signals, tmp_path: Path
) -> None:
    job_id = server.submit(100_000)
    deadline_s = time.monotonic() + HANG_S
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


def test_a_running_controller_purges_repeatedly_without_being_asked(tmp_path: Path) -> None:
    """With `weft up --keep`, and no request in between."""
    server = Server(tmp_path, "--keep", "1s")
    try:
        for number in (1, 2):
            folder = server.home.job_folder(server.submit(1))
            deadline_s = time.monotonic() + HANG_S
            while server.log_file.read_text().count("purged 1 jobs") < number:
                assert time.monotonic() < deadline_s, server.log_file.read_text()
                time.sleep(0.05)
            assert not folder.exists()
        assert server.client.jobs() == []
    finally:
        server.client.shutdown(stop_jobs=True)
        server.end()


def step_of(server: Server, job_id: str, *, beyond: int) -> int:
    """Wait until the job has reported a later step, and return it."""
    deadline_s = time.monotonic() + HANG_S
    while (step := server.client.job(job_id)["step"]) <= beyond:
        assert time.monotonic() < deadline_s, (server.folder / "server.log").read_text()
        time.sleep(0.02)
    return step


def test_jobs_can_report_again_after_the_channel_socket_was_deleted(shared: Server) -> None:
    job_id = shared.submit(100_000)
    step_of(shared, job_id, beyond=0)
    shared.home.channel_socket.unlink()
    deadline_s = time.monotonic() + HANG_S
    while not shared.home.channel_socket.exists():
        assert time.monotonic() < deadline_s, shared.log_file.read_text()
        time.sleep(0.05)
    assert shared.home.channel_socket.stat().st_mode & 0o777 == 0o600
    later = shared.submit(10)
    (row,) = shared.client.wait([later], timeout_s=HANG_S)
    assert (row["state"], row["step"]) == ("COMPLETED", 10)
    step_of(shared, job_id, beyond=shared.client.job(job_id)["step"])
    shared.client.cancel(job_id)
    shared.client.wait([job_id], timeout_s=HANG_S)


def test_a_controller_whose_socket_was_deleted_can_be_reached_and_shut_down_again(server: Server) -> None:
    job_id = server.submit(5)
    server.home.api_socket.unlink()
    server.home.record_file.unlink()
    deadline_s = time.monotonic() + HANG_S
    while not (server.home.api_socket.exists() and server.home.record_file.exists()):
        assert time.monotonic() < deadline_s, (server.folder / "server.log").read_text()
        time.sleep(0.05)
    (row,) = server.client.wait([job_id], timeout_s=HANG_S)
    assert row["state"] == "COMPLETED"
    assert server.home.api_socket.stat().st_mode & 0o777 == 0o600
    server.client.shutdown(stop_jobs=True)
    assert server.end() == 0
    assert not server.home.api_socket.exists()
