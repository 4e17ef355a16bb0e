"""An attempt's owner without a cluster: a controller that comes back must not disturb it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

ray = pytest.importorskip("ray")

from weft.engines.ray import attempt_owner  # noqa: E402 - imports ray
from weft.engines.ray.attempt_owner import AttemptOwner  # noqa: E402


def test_a_second_bridge_waits_for_the_attempt_and_does_not_start_it_again(monkeypatch: pytest.MonkeyPatch) -> None:
    lives: list[Mapping[str, Any]] = []
    exits: list[bool] = []
    is_over = asyncio.Event()

    async def live(owner: AttemptOwner, document: Mapping[str, Any]) -> None:
        lives.append(document)
        await is_over.wait()

    async def run() -> None:
        owner = AttemptOwner()
        first = asyncio.ensure_future(owner.run({}))
        await asyncio.sleep(0)
        first.cancel()  # its bridge was killed with its controller
        second = asyncio.ensure_future(owner.run({}))
        await asyncio.sleep(0)
        assert not second.done()
        is_over.set()
        await second

    monkeypatch.setattr(AttemptOwner, "_live", live)
    monkeypatch.setattr(attempt_owner, "_leave", lambda _: None)
    monkeypatch.setattr(ray.actor, "exit_actor", lambda: exits.append(True))
    asyncio.run(run())
    assert len(lives) == 1
    assert exits == [True]


def test_an_owner_that_fails_leaves_although_nobody_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    left: list[int] = []

    async def fail(owner: AttemptOwner, document: Mapping[str, Any]) -> None:
        raise ValueError("its agent is gone")

    async def run() -> None:
        with pytest.raises(ValueError, match="its agent is gone"):  # which a bridge that is still there reads
            await AttemptOwner().run({})
        while not left:
            await asyncio.sleep(0)

    monkeypatch.setattr(AttemptOwner, "_live", fail)
    monkeypatch.setattr(attempt_owner, "_GONE_AFTER_S", 0.0)
    monkeypatch.setattr(attempt_owner.os, "_exit", left.append)
    asyncio.run(run())
    assert left == [0]
