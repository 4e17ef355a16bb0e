"""A node's agent without a cluster: what it must not leave behind."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.hang_limit import HANG_S

pytest.importorskip("ray")

from weft.engines.ray import warden
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


async def _closed(agent: NodeAgent, temporary: Path) -> bool:
    await agent.close()
    return any(temporary.rglob(f"engine/{warden.CLOSED}"))
