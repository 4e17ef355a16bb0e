"""What ``overlap/`` and ``worker/`` rely on, for every gate: without another job it never blocks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lease_processes import lease_server, wait_until
from weft.crossover.lease_client import LeaseGate, gate_from_environment
from weft.crossover.lease_messages import Join
from weft.process import gate as gates
from weft.process.gate import OPEN, Gate


@pytest.fixture(params=["open", "leased", "without a server", "server lost", "closed"])
def gate(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Gate]:
    if request.param == "open":
        yield OPEN
        return
    if request.param == "without a server":
        leased = LeaseGate(str(tmp_path / "s"), Join("a", "0"))
        yield leased
        leased.close()
        return
    with lease_server(tmp_path / "s") as server:
        leased = LeaseGate(str(server.path), Join("a", "0"))
        if request.param == "server lost":
            leased.acquire()
            server.kill()
            wait_until(lambda: not leased.is_shared)
        if request.param == "closed":
            leased.close()
        yield leased
        leased.close()


def test_turns_and_gaps_may_come_in_any_order(gate: Gate) -> None:
    for _ in range(3):
        gate.acquire()
        gate.release()
    assert gate.contended is False


def test_a_gate_can_be_acquired_twice_and_released_twice(gate: Gate) -> None:
    gate.release()
    gate.acquire()
    gate.acquire()
    gate.release()
    gate.release()
    gate.acquire()
    assert gate.contended is False


def test_an_environment_without_a_lease_gives_the_open_gate() -> None:
    assert gate_from_environment({"RANK": "0"}) is OPEN


def test_the_process_uses_the_installed_gate(gate: Gate) -> None:
    before = gates.current()
    try:
        gates.install(gate)
        assert gates.current() is gate
    finally:
        gates.install(before)
