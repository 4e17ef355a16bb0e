"""Only reports of a job's current attempt reach the controller, and stop requests come back."""

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

from weft.core.step_report import Progress, StepReport, parse_report
from weft.daemon.report_channel import JobChannel
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
    assert report.progress == Progress(7, 100, 0.1, 0.02, 0.5)


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


def test_only_the_owner_may_use_the_channel_socket(channel: JobChannel, tmp_path: Path) -> None:
    assert (tmp_path / "c").stat().st_mode & 0o777 == 0o600


def test_reports_of_other_users_are_dropped(
    channel: JobChannel, worker: Channel, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker.send(step())
    mine = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: mine + 1)
    assert list(channel.receive(lambda job_id, attempt: False)) == []
    assert channel.num_dropped == 1


def test_a_flood_of_reports_does_not_block_and_is_capped(channel: JobChannel, tmp_path: Path) -> None:
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


def test_impossible_numbers_in_a_report_do_no_harm() -> None:
    report = parse_report(json.dumps(step(metrics={"loss": float("nan")}, exposed_s=9.0, total_steps="many")).encode())
    assert report is not None
    assert report.progress == Progress(7, None, step_s=0.1, exposed_s=0.1, loss=None)


def test_what_a_worker_sends_is_what_the_controller_gets() -> None:
    progress = Progress(7, 100, 0.1, 0.02, 0.5)
    phases = 0.03, 0.05, 0.01
    metrics = {"loss": 0.5, "lr": 0.1}
    report = StepReport("a", 2, 1, 4, progress, 3, 640.0, metrics, 1 << 30, True, False, phases, 0.07, 0.002)
    assert parse_report(json.dumps(report.message()).encode()) == report


@pytest.mark.parametrize(
    ("phases", "network_s", "gap_s"),
    [
        (None, None, 0.4),  # not overlapped: while it waits, only its own messages are on the link
        ((0.2, 0.3, 0.1), 0.5, 0.4),
        ((0.2, 0.3, 0.1), 0.9, 0.1),  # it also sends while it computes, and leaves a tenth of the link's time
        ((0.2, 0.3, 0.1), 1.2, 0.0),
        ((0.2, 0.3, 0.1), None, 0.0),  # not measured yet: nothing is promised to a partner
    ],
)
def test_an_overlapped_job_lends_no_more_time_than_the_link_has_left(
    phases: tuple[float, float, float] | None, network_s: float | None, gap_s: float
) -> None:
    report = StepReport("a", 1, 0, 2, Progress(7, 100, 1.0, 0.4), phases=phases, network_s=network_s)
    assert report.gap_s == pytest.approx(gap_s)


def test_a_worker_that_an_older_weft_started_is_still_understood() -> None:
    sent = (
        b'{"kind": "step", "job_id": "g6v5s2hr", "attempt": 1, "rank": 0, "world_size": 2, "step": 40, '
        b'"total_steps": 100, "epoch": 1, "step_s": 0.02, "exposed_s": 0.004, "samples_per_s": 3200.0, '
        b'"metrics": {"loss": 1.5, "accuracy": 0.5}, "memory_bytes": 1048576, "takes_turns": true, "can_resume": true}'
    )
    assert parse_report(sent) == StepReport(
        "g6v5s2hr",
        1,
        rank=0,
        world_size=2,
        progress=Progress(40, 100, 0.02, 0.004, 1.5),
        epoch=1,
        samples_per_s=3200.0,
        metrics={"loss": 1.5, "accuracy": 0.5},
        memory_bytes=1 << 20,
        takes_turns=True,
        can_resume=True,
    )


def test_a_controller_of_an_older_weft_understands_a_worker() -> None:
    message = StepReport("a", 1, 0, 1, Progress(7, 100, 0.1, 0.02, 0.5), metrics={"loss": 0.5}).message()
    assert message == step(
        total_steps=100,
        exposed_s=0.02,
        epoch=0,
        samples_per_s=0.0,
        metrics={"loss": 0.5},
        memory_bytes=0,
        takes_turns=False,
        can_resume=None,
        phases=None,
        network_s=None,
        turn_wait_s=0.0,
        batch=None,
    )


def test_all_reports_of_one_datagram_arrive_and_one_bad_line_costs_only_itself(
    channel: JobChannel, tmp_path: Path
) -> None:
    lines = [json.dumps(step(rank=0)).encode(), b"not a report", json.dumps(step(rank=1)).encode()]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as node:
        node.sendto(b"\n".join(lines), str(tmp_path / "c"))
    assert [report.rank for report in channel.receive(lambda job_id, attempt: False)] == [0, 1]
    assert channel.num_dropped == 1
