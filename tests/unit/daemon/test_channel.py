"""Reports reach the controller only from the present attempt of a job, and stop requests come back."""

from __future__ import annotations

import json
import os
import select
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.hang_limit import HANG_S

from weft.daemon.report_channel import JobChannel, parse_report
from weft.worker.channel import Channel


def step(**values: Any) -> dict[str, Any]:
    return {"kind": "step", "job_id": "a", "attempt": 1, "rank": 0, "world_size": 1, "step": 7, "step_s": 0.1} | values


@pytest.fixture
def channel(tmp_path: Path) -> Iterator[JobChannel]:
    made = JobChannel(tmp_path / "c")
    yield made
    made.close()


@pytest.fixture
def worker(tmp_path: Path, channel: JobChannel) -> Iterator[Channel]:
    made = Channel(str(tmp_path / "c"))
    yield made
    made.close()


def answers(worker: Channel) -> list[dict[str, Any]]:
    assert worker._socket is not None
    select.select([worker._socket], [], [], HANG_S)
    return worker.receive()


def test_a_report_of_the_current_attempt_is_accepted(channel: JobChannel, worker: Channel) -> None:
    worker.send(step(metrics={"loss": 0.5}, total_steps=100, exposed_s=0.02))
    (report,) = channel.receive(lambda job_id, attempt: False)
    assert (report.step, report.loss, report.total_steps, report.exposed_s) == (7, 0.5, 100, 0.02)


def test_late_report_is_dropped(channel: JobChannel, worker: Channel) -> None:
    worker.send(step())
    assert list(channel.receive(lambda job_id, attempt: None)) == []
    assert channel.num_dropped == 1


def test_stop_reaches_a_worker_that_has_reported(channel: JobChannel, worker: Channel) -> None:
    worker.send(step())
    assert len(list(channel.receive(lambda job_id, attempt: False))) == 1
    channel.stop("a", 1)
    assert answers(worker) == [{"stop": True}]


def test_controller_that_came_back_repeats_the_stop(channel: JobChannel, worker: Channel) -> None:
    worker.send(step())
    assert len(list(channel.receive(lambda job_id, attempt: True))) == 1
    assert answers(worker) == [{"stop": True}]


def test_a_forgotten_attempt_gets_no_messages(channel: JobChannel, worker: Channel) -> None:
    worker.send(step())
    assert len(list(channel.receive(lambda job_id, attempt: False))) == 1
    channel.forget("a", 1)
    channel.stop("a", 1)
    assert worker.receive() == []


def test_socket_is_its_owners_alone(channel: JobChannel, tmp_path: Path) -> None:
    assert (tmp_path / "c").stat().st_mode & 0o777 == 0o600


def test_reports_of_other_users_are_dropped(
    channel: JobChannel, worker: Channel, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker.send(step())
    mine = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: mine + 1)
    assert list(channel.receive(lambda job_id, attempt: False)) == []
    assert channel.num_dropped == 1


def test_flood_does_not_block_and_is_cut(channel: JobChannel, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as flooder:
        flooder.connect(str(tmp_path / "c"))
        num_sent = 0
        try:
            while num_sent < 100_000:
                flooder.send(b"x" * 100)
                num_sent += 1
        except BlockingIOError:
            pass
    assert list(channel.receive(lambda job_id, attempt: False)) == []
    assert channel.num_dropped == min(num_sent, 1000)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff\xfe",
        b"[]",
        b"7",
        b'{"kind": "step"}',
        json.dumps(step(job_id=3)).encode(),
        json.dumps(step(step=-1)).encode(),
        json.dumps(step(step=True)).encode(),
        json.dumps(step(step=2**60)).encode(),
        json.dumps(step(step_s="0.1")).encode(),
        json.dumps(step(step_s=float("nan"))).encode(),
        json.dumps(step(step_s=float("inf"))).encode(),
        json.dumps(step(kind="other")).encode(),
        b"[" * 50_000,
    ],
)
def test_a_message_that_is_not_a_report_is_ignored(data: bytes) -> None:
    assert parse_report(data) is None


def test_odd_numbers_in_a_report_do_no_harm() -> None:
    report = parse_report(json.dumps(step(metrics={"loss": float("nan")}, exposed_s=9.0, total_steps="many")).encode())
    assert report is not None
    assert (report.loss, report.exposed_s, report.total_steps) == (None, 0.1, None)
