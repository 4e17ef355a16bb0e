"""A node's agent without a cluster: what it must not leave behind."""

from __future__ import annotations

import asyncio
import shutil
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.hang_limit import HANG_S

pytest.importorskip("ray")

from weft.engines.ray import node_agent, warden
from weft.engines.ray.cluster_order import ClusterOrder, NodePart
from weft.engines.ray.node_agent import NodeAgent

ORDER = ClusterOrder("job", 1, ("true",), "/", {}, (NodePart("node-id", "node", "127.0.0.1", "CPU", (0,), 0),))
SETTINGS: dict[str, Any] = {"warm": False, "grace_s": 1.0, "hang_s": 1.0, "relay": "", "ship": False}


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A short path: the agent binds a socket below it."""
    made = tempfile.mkdtemp()
    monkeypatch.setattr(tempfile, "tempdir", made)
    monkeypatch.setattr(NodeAgent, "_see_to_the_warden", _no_warden)
    yield Path(made)
    shutil.rmtree(made)


async def _no_warden(agent: NodeAgent) -> None:
    """There is no head that it could watch."""


async def _no_look(agent: NodeAgent) -> None:
    """It would wake whoever waits for news."""


@pytest.mark.parametrize("late", ["stop", "kill"])
def test_a_message_about_a_forgotten_attempt_leaves_nothing_behind(temporary: Path, late: str) -> None:
    async def run() -> bool:
        agent = NodeAgent("test", "node-id", 1, SETTINGS)
        await agent.kill(ORDER.to_json())
        assert await agent.is_over("job", 1)
        await agent.forget("job", 1)
        await getattr(agent, late)(ORDER.to_json())
        await agent.start(ORDER.to_json())
        assert not await agent.is_over("job", 1)
        return await _closed(agent, temporary)

    assert asyncio.run(run())


def test_whoever_waits_for_an_attempt_that_was_forgotten_does_not_wait_forever(temporary: Path) -> None:
    async def run() -> str:
        agent = NodeAgent("test", "node-id", 1, SETTINGS)
        await agent.kill(ORDER.to_json())
        await agent.forget("job", 1)
        found = await asyncio.wait_for(agent.ended("job", 1), HANG_S)
        await agent.close()
        return found

    assert asyncio.run(run()) == ""


def test_an_attempt_nobody_forgot_does_not_keep_the_warden_running(temporary: Path) -> None:
    async def run() -> bool:
        agent = NodeAgent("test", "node-id", 1, SETTINGS)
        await agent.kill(ORDER.to_json())
        return await _closed(agent, temporary)

    assert asyncio.run(run())


def test_the_report_that_ends_a_start_does_not_wait_for_the_next_look(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The controller leaves a job alone until then, and counts the wait as part of the start."""
    monkeypatch.setattr(node_agent, "_LOOK_EVERY_S", 10 * HANG_S)
    monkeypatch.setattr(NodeAgent, "_look", _no_look)
    report = b'{"kind":"step","job_id":"job","attempt":1,"rank":0,"world_size":1,"step":1,"step_s":0.1}'

    async def run() -> list[bytes]:
        agent = NodeAgent("test", "node-id", 1, SETTINGS)
        known = await agent.news("", -1, [], {})
        asked = asyncio.create_task(agent.news(known["epoch"], known["version"], [], {}))
        (channel,) = temporary.rglob("channel.sock")
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as worker:
            worker.sendto(report, str(channel))
        news = await asyncio.wait_for(asked, HANG_S)
        await agent.close()
        reports: list[bytes] = news["reports"]
        return reports

    assert asyncio.run(run()) == [report]


async def _closed(agent: NodeAgent, temporary: Path) -> bool:
    await agent.close()
    return any(temporary.rglob(f"engine/{warden.CLOSED}"))
