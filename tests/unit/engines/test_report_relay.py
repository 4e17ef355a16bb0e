"""Reports on their way from the nodes to the controller."""

from __future__ import annotations

import asyncio
import socket
import threading
from pathlib import Path

import pytest
from tests.hang_limit import HANG_S

from weft.engines.ray import report_relay
from weft.engines.ray.report_relay import ReportRelay

NUM_REPORTS = 5_000
"""Far more than a datagram socket holds."""


def test_no_report_of_a_large_node_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "run").mkdir()
    monkeypatch.setattr(report_relay, "MAX_WAIT_S", HANG_S)
    received: list[bytes] = []
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        channel.bind(str(tmp_path / "run" / "channel.sock"))

        def read() -> None:
            while len(received) < NUM_REPORTS:
                received.extend(channel.recv(1 << 16).split(b"\n"))

        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        relay = ReportRelay(tmp_path)
        sent = [f"{number:200}".encode() for number in range(NUM_REPORTS)]
        asyncio.run(_all_passed_on(relay, sent))
        reader.join(HANG_S)
        relay.close()
    assert received == sent


async def _all_passed_on(relay: ReportRelay, reports: list[bytes]) -> None:
    for start in range(0, len(reports), 500):
        relay.pass_on(reports[start : start + 500])
        await asyncio.sleep(0)
    await relay.idle()


def test_without_a_controller_reports_are_dropped_and_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "run").mkdir()
    monkeypatch.setattr(report_relay, "MAX_WAIT_S", 0.0)
    relay = ReportRelay(tmp_path)
    asyncio.run(_all_passed_on(relay, [b"a", b"b"]))
    relay.close()
    assert relay.num_missed == 2
