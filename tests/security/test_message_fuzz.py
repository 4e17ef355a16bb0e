"""Lease server and job channel read what any process of the user sends: no message stops them for the others."""

from __future__ import annotations

import math
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.hang_limit import HANG_S

from hostile import BUDGETS, hostile_messages, looking
from lease_processes import LeaseServer, lease_server, lease_workers, wait_until
from weft.core.plain_json import parse_object
from weft.core.step_report import StepReport
from weft.crossover.order import from_json, to_json
from weft.daemon.report_channel import JobChannel

MAX_SENT_BYTES = 100_000
"""More than the receivers take, less than the kernel does."""
JOIN = {
    "kind": "join",
    "job": "x",
    "device": "0",
    "role": "fair",
    "weight": 1.0,
    "is_first": False,
    "lead": "",
    "key": "",
}
STEP = {
    "kind": "step",
    "job_id": "a",
    "attempt": 1,
    "rank": 0,
    "world_size": 1,
    "step": 7,
    "step_s": 0.1,
    "total_steps": 9,
    "epoch": 0,
    "exposed_s": 0.0,
    "metrics": {"loss": 1.0},
    "memory_bytes": 5,
}
sayings = st.builds(
    struct.Struct("<BQQ").pack, st.integers(0, 255), st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1)
)
packets = st.one_of(
    hostile_messages(JOIN),
    hostile_messages({**JOIN, "lead": "127.0.0.1:1", "is_first": True}),
    hostile_messages({"kind": "role", "job": "a", "role": "fair", "weight": 1.0}),
    hostile_messages({"kind": "status"}),
    sayings,
)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[LeaseServer]:
    with lease_server(tmp_path / "s", "--hard-s", "600", "--soft-s", "600") as running:
        yield running


def say(path: Path, said: list[bytes]) -> None:
    """One more process that has something to say to the server, and leaves."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.settimeout(HANG_S)
        connection.connect(str(path))
        for packet in said:
            try:
                connection.send(packet[:MAX_SENT_BYTES])
            except (BrokenPipeError, ConnectionResetError):
                return  # thrown out already


@pytest.mark.parametrize(
    "packet",
    [
        pytest.param(b"[" * 60_000, id="too deep"),
        pytest.param(b'{"kind":"join","job":"x","device":"0","weight":%s}' % (b"9" * 400), id="400 digits"),
        pytest.param(b'{"kind":"role","job":"a","weight":%s}' % (b"9" * 400), id="a role of 400 digits"),
        pytest.param(b'{"kind":"join","job":"x","device":"0","weight":NaN}', id="no number"),
        pytest.param(b'{"kind":"join","job":"x","device":"0","weight":-1}', id="negative"),
        pytest.param(b'{"kind":"join","job":"\\ud800","device":"0"}', id="no text"),
        pytest.param(
            b'{"kind":"join","job":"x","device":"0","is_first":true,"lead":"%s:1"}' % (b"a" * 300), id="no host name"
        ),
    ],
)
def test_a_bad_lease_message_disconnects_only_its_sender(server: LeaseServer, packet: bytes) -> None:
    with lease_workers(server.path, "a", "b") as (a, b):
        assert a.do("acquire") == "acquired"
        say(server.path, [packet])
        b.tell("acquire")
        wait_until(lambda: server.waiting() == ["b"])
        assert a.do("release") == "released"
        assert b.answer() == "acquired"
        assert server.process.poll() is None


@BUDGETS
def test_no_lease_message_stops_the_server_or_the_jobs_that_share(server: LeaseServer, num_examples: int) -> None:
    with lease_workers(server.path, "a", "b") as (a, b):

        @looking(num_examples)
        @given(said=st.lists(packets, min_size=1, max_size=4))
        def fuzz(said: list[bytes]) -> None:
            say(server.path, said)
            assert server.process.poll() is None
            assert server.status() is not None

        fuzz()
        # The two well-behaved jobs still share: each gets the device when the other releases it.
        assert a.do("shared") == b.do("shared") == "True"
        for first, second in ((a, b), (b, a)):
            assert first.do("acquire") == "acquired"
            second.tell("acquire")
            wait_until(lambda job=second.job: job in server.waiting())
            assert first.do("release") == "released"
            assert second.answer() == "acquired"
            assert second.do("release") == "released"


@BUDGETS
def test_a_malformed_turn_order_is_ignored(num_examples: int) -> None:
    @looking(num_examples)
    @given(line=hostile_messages({"turns": [["a", 1], ["b", 2]], "past": 1}))
    def fuzz(line: bytes) -> None:
        order = from_json(parse_object(line))
        assert order is None or from_json(to_json(order)) == order

    fuzz()


@BUDGETS
def test_no_message_on_the_job_channel_blocks_other_jobs_reports(tmp_path: Path, num_examples: int) -> None:
    channel = JobChannel(tmp_path / "c")
    heard: list[StepReport] = []
    num_sent = 0

    @looking(num_examples)
    @given(data=hostile_messages(STEP))
    def fuzz(data: bytes) -> None:
        nonlocal num_sent
        datagram = data[:MAX_SENT_BYTES]
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as worker:
            worker.sendto(datagram, str(tmp_path / "c"))
        num_sent += len(datagram.split(b"\n"))  # a report per line
        for report in channel.receive(lambda job_id, attempt: False):
            progress = report.progress
            assert 0.0 <= progress.exposed_s <= progress.step_s < float("inf")
            assert max(progress.step, report.rank, report.attempt, progress.total_steps or 0) < 2**53
            assert 0.0 <= report.samples_per_s < float("inf")
            assert all(map(math.isfinite, report.metrics.values()))
            heard.append(report)

    try:
        fuzz()
        assert num_sent == len(heard) + channel.num_dropped
        assert heard
        assert channel.num_dropped
    finally:
        channel.close()
