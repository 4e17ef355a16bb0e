"""Anybody on this machine can connect to the port: whatever they do there, the owner's controller works on."""

from __future__ import annotations

import contextlib
import selectors
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.hang_limit import HANG_S

from controller_process import Server
from fake_controller import TOKEN, FakeController, served_on_both
from weft.client import Client
from weft.daemon.connections import ConnectionPatience, limits_for

# Becomes another user where it may, opens connections, says how many, and keeps them until its input ends.
FLOOD = """
import encodings.idna, os, socket, sys  # nobody may not read modules that are loaded later
if os.getuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
port, num = int(sys.argv[1]), int(sys.argv[2])
opened = []
for _ in range(num):
    opened.append(socket.create_connection(("127.0.0.1", port), timeout=400))
print(len(opened), flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def flood(port: int, num: int) -> Iterator[None]:
    """Idle connections, of another user if the tests run as root."""
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", FLOOD, str(port), str(num)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd="/",
    )
    try:
        assert process.stdout.readline() == f"{num}\n"
        yield
    finally:
        process.communicate()


@pytest.fixture
def small_server(tmp_path: Path) -> Iterator[Server]:
    """A controller with few file descriptors, so that few connections are a flood."""
    made = Server(tmp_path, max_files=256)
    yield made
    made.allow_files(256)
    made.client.shutdown(stop_jobs=True)
    assert made.end() == 0, made.log_file.read_text()


def test_a_thousand_idle_connections_of_another_user_block_nothing(small_server: Server) -> None:
    log_bytes = small_server.log_file.stat().st_size
    with flood(small_server.record.port, 1000):
        assert small_server.client.health()["status"] == "ok"
        job_id = small_server.submit(3)
        (row,) = small_server.client.wait([job_id], timeout_s=HANG_S)
        assert row["state"] == "COMPLETED"
        assert small_server.num_files() < 256 // 2
        # Nor is the port itself closed to its owner.
        with socket.create_connection(("127.0.0.1", small_server.record.port), timeout=HANG_S) as connection:
            connection.sendall(request(small_server.home.token(), small_server.record.port))
            assert connection.recv(64).startswith(b"HTTP/1.1 200 ")
    assert small_server.log_file.stat().st_size - log_bytes < 4096, small_server.log_file.read_text()


def test_without_free_file_descriptors_the_owner_is_answered_and_no_job_is_lost(small_server: Server) -> None:
    running = small_server.submit(100_000)
    until_running(small_server.client, running)
    small_server.allow_files(small_server.num_files())
    log_bytes = small_server.log_file.stat().st_size
    with flood(small_server.record.port, 100):
        for _ in range(20):
            assert small_server.client.job(running)["state"] == "RUNNING"
        # The engine hears of the end of its workers when it can open no file at all.
        small_server.client.cancel(running)
    assert small_server.log_file.stat().st_size - log_bytes < 20_000, small_server.log_file.read_text()
    small_server.allow_files(256)
    (row,) = small_server.client.wait([running], timeout_s=HANG_S)
    assert row["state"] == "CANCELLED"
    (row,) = small_server.client.wait([small_server.submit(3)], timeout_s=HANG_S)
    assert row["state"] == "COMPLETED"


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param([b""], id="nothing"),
        pytest.param([b"G", b"E", b"T", b" ", b"/", b" "], id="a byte now and then"),
        pytest.param([b"GET / HTTP/1.1\r\nHost: localhost\r\n", b"A: b\r\n", b"C: d\r\n"], id="a header now and then"),
        pytest.param([b"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n", b"x", b"x"], id="body"),
        pytest.param([b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"] * 3, id="requests without reading"),
    ],
)
def test_a_client_without_a_token_is_disconnected_after_a_time_limit(sent: list[bytes], tmp_path: Path) -> None:
    with served_on_both(FakeController(), tmp_path, ConnectionPatience(unknown_s=0.3)) as (_, port):
        assert_is_closed(port, sent)


def test_a_slow_owner_is_disconnected_too(tmp_path: Path) -> None:
    head = b"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\n" % TOKEN.encode()
    answered = request(TOKEN, None)
    with served_on_both(FakeController(), tmp_path, ConnectionPatience(head_s=1.0), body_s=0.3) as (_, port):
        assert b"408" in assert_is_closed(port, [head + b"Content-Length: 1000\r\n\r\n", b"x", b"x"])
        assert b"408" in assert_is_closed(port, [head + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n"])
        # The second request on a connection that was answered once.
        assert b"200 OK" in assert_is_closed(port, [answered + b"GET /heal", b"t", b"h"])


def test_following_a_log_has_no_time_limit(tmp_path: Path) -> None:
    controller = FakeController()
    job = controller.add(attempt=1)
    controller.endless = True
    with served_on_both(controller, tmp_path, ConnectionPatience(0.5, 0.5), body_s=0.5) as (_, port):
        with socket.create_connection(("127.0.0.1", port), timeout=HANG_S) as connection:
            connection.sendall(request(TOKEN, None, f"/v1/jobs/{job.id}/logs?follow=true"))
            began_s = time.monotonic()
            while time.monotonic() - began_s < 1.5:
                assert connection.recv(1000) != b""
        controller.endless = False


def test_a_half_closed_connection_is_closed_at_once(tmp_path: Path) -> None:
    with (
        served_on_both(FakeController(), tmp_path, ConnectionPatience()) as (_, port),
        socket.create_connection(("127.0.0.1", port), timeout=HANG_S) as connection,
    ):
        connection.sendall(b"GET / HT")
        connection.shutdown(socket.SHUT_WR)
        assert connection.recv(1000) == b""


def test_authenticated_connections_are_not_closed_for_new_ones(tmp_path: Path) -> None:
    num_files = 256
    _, limits = limits_for(num_files)
    with (
        served_on_both(FakeController(), tmp_path, ConnectionPatience(), num_files=num_files) as (home, port),
        contextlib.ExitStack() as opened,
    ):
        own = opened.enter_context(socket.create_connection(("127.0.0.1", port), timeout=HANG_S))
        own.sendall(request(TOKEN, None))
        assert own.recv(64).startswith(b"HTTP/1.1 200 ")
        for _ in range(3 * limits.unknown):
            opened.enter_context(socket.create_connection(("127.0.0.1", port), timeout=HANG_S))
        assert Client(home.root).health()["status"] == "ok"
        while own.recv(1 << 16).count(b"}") == 0:
            pass
        own.sendall(request(TOKEN, None))
        assert own.recv(64).startswith(b"HTTP/1.1 200 ")


def test_an_owner_who_used_up_all_connections_is_told_so(tmp_path: Path) -> None:
    num_files = 64
    _, limits = limits_for(num_files)
    with (
        served_on_both(FakeController(), tmp_path, ConnectionPatience(head_s=60.0), num_files=num_files) as (_, port),
        contextlib.ExitStack() as opened,
    ):
        for _ in range(limits.total):
            own = opened.enter_context(socket.create_connection(("127.0.0.1", port), timeout=HANG_S))
            own.sendall(request(TOKEN, None))
            assert own.recv(64).startswith(b"HTTP/1.1 200 ")
        with socket.create_connection(("127.0.0.1", port), timeout=HANG_S) as one_more:
            answer = one_more.recv(1000)
    assert answer.startswith(b"HTTP/1.1 503 ")
    assert b"too many connections" in answer


def request(token: str, port: int | None, path: str = "/healthz") -> bytes:
    host = "localhost" if port is None else f"127.0.0.1:{port}"
    return f"GET {path} HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {token}\r\n\r\n".encode()


def assert_is_closed(port: int, sent: list[bytes]) -> bytes:
    """Sends the first piece, then the others round and round, until the server closes; returns what it said."""
    answer = b""
    with socket.create_connection(("127.0.0.1", port)) as connection, selectors.DefaultSelector() as selector:
        selector.register(connection, selectors.EVENT_READ)
        connection.sendall(sent[0])
        deadline_s = time.monotonic() + HANG_S
        number = 0
        while time.monotonic() < deadline_s:
            if not selector.select(0.02):
                number += 1
                with contextlib.suppress(ConnectionResetError, BrokenPipeError):  # the answer may still be unread
                    connection.sendall((sent[1:] or [b""])[number % max(len(sent) - 1, 1)])
                continue
            try:
                data = connection.recv(65536)
            except ConnectionResetError:
                return answer
            if not data:
                return answer
            answer += data
    raise AssertionError("the connection is still open")


def until_running(client: Client, job_id: str) -> None:
    deadline_s = time.monotonic() + HANG_S
    while client.job(job_id)["state"] != "RUNNING":
        assert time.monotonic() < deadline_s
        time.sleep(0.02)
