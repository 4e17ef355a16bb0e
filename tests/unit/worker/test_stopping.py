"""A stop request reaches the worker in every way, and never holds up training."""

from __future__ import annotations

import json
import os
import signal
import socket
from pathlib import Path

import pytest

from weft.worker.agreement import NOTHING, Alone, Wishes
from weft.worker.channel import Channel
from weft.worker.stopping import StopRequest


def controller(path: Path) -> socket.socket:
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    listening.bind(str(path))
    return listening


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_first_signal_asks_to_stop_and_the_second_has_its_default_effect(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    request = StopRequest()
    request.install()
    try:
        os.kill(os.getpid(), number)
        assert request.requested()
        assert request.reason == number.name
        assert signal.getsignal(number) == before
    finally:
        request.uninstall()


def test_leaving_puts_the_scripts_own_handlers_back() -> None:
    before = signal.getsignal(signal.SIGTERM)
    request = StopRequest()
    request.install()
    assert signal.getsignal(signal.SIGTERM) != before
    request.uninstall()
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_file_asks_to_stop(tmp_path: Path) -> None:
    now = [0.0]
    request = StopRequest(stop_file=tmp_path / "stop", now=lambda: now[0])
    assert not request.requested()
    (tmp_path / "stop").touch()
    now[0] = 1.0
    assert request.requested()


def test_the_controller_answers_a_report_with_a_stop(tmp_path: Path) -> None:
    with controller(tmp_path / "channel") as listening:
        channel = Channel(str(tmp_path / "channel"))
        request = StopRequest(channel)
        assert channel.send({"step": 3})
        message, worker = listening.recvfrom(1 << 16)
        assert json.loads(message) == {"step": 3}
        listening.sendto(b"not json", worker)
        listening.sendto(json.dumps({"stop": True}).encode(), worker)
        assert request.requested()
        channel.close()


def test_a_controller_that_does_not_read_costs_reports_and_not_time(tmp_path: Path) -> None:
    with controller(tmp_path / "channel"):
        channel = Channel(str(tmp_path / "channel"))
        results = [channel.send({"step": step}) for step in range(5000)]
        assert results[0]
        assert not results[-1]
        channel.close()


def test_a_late_or_restarted_controller_is_found(tmp_path: Path) -> None:
    now = [0.0]
    channel = Channel(str(tmp_path / "channel"), now=lambda: now[0])
    assert not channel.send({"step": 0})
    with controller(tmp_path / "channel") as listening:
        now[0] = 10.0
        assert channel.send({"step": 1})
        assert json.loads(listening.recv(1 << 16)) == {"step": 1}
    channel.close()


def test_a_single_worker_stops_on_its_own() -> None:
    assert Alone().after_step(Wishes(stop=True)) == Wishes(stop=True)
    assert not Alone().after_step(NOTHING)
