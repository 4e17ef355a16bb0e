"""One attempt's owner: an actor that lives exactly as long as the attempt, and its placement group with it.

The group is not detached: Ray removes it when its creator is gone, for whatever reason.  The workers are not Ray
actors; the group only keeps other users of the cluster off their devices.  Of two attempts that share devices, the one
that started first has the group; the other one creates its own when the first is over.  The owner also coordinates the
parts: the part of rank 0 binds its port, then the others are told the port; when one part fails, the others are killed.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from typing import Any

import ray
from ray.util import placement_group, remove_placement_group

from weft.engines.ray.cluster_access import actor_named, agent_name
from weft.engines.ray.cluster_order import ClusterOrder

SETTLE_S = 3.0
"""How long the other parts have to report what they saw after the first one has failed."""
_ASK_EVERY_S = 1.0
_GONE_AFTER_S = 10.0
"""How long those who wait for the attempt have to read an error of its owner."""


class AttemptOwner:
    """Created for one order."""

    def __init__(self) -> None:
        self._late_group: Any = None
        self._life: asyncio.Task[None] | None = None

    async def run(self, document: Mapping[str, Any]) -> None:
        """Run the attempt to its end; the actor exits with it.  Every new bridge calls this, and waits as well."""
        if self._life is None:
            self._life = asyncio.ensure_future(self._live(document))
            self._life.add_done_callback(_leave)
        await asyncio.shield(self._life)
        ray.actor.exit_actor()

    async def _live(self, document: Mapping[str, Any]) -> None:
        order = ClusterOrder.from_json(document)
        agents = [ray.get_actor(agent_name(part.node_id)) for part in order.parts]
        group = None if order.shares_with else _group_of(order)
        reserving = asyncio.ensure_future(self._reserve_after(order.shares_with, order))
        try:
            if group is None or await self._reserved(group, order, agents[0]):
                await self._start(order, document, agents)
            await self._see_through(order, document, agents)
        finally:
            reserving.cancel()
            for made in (group, self._late_group):
                if made is not None:
                    remove_placement_group(made)

    async def _reserve_after(self, holder: str, order: ClusterOrder) -> None:
        """The attempt that we share devices with has reserved them; reserve them ourselves when it is over."""
        if holder:
            while await asyncio.to_thread(actor_named, holder) is not None:
                await asyncio.sleep(_ASK_EVERY_S)
            self._late_group = _group_of(order)

    async def _reserved(self, group: Any, order: ClusterOrder, lead: Any) -> bool:
        """Whether the devices were reserved; False if the attempt was called off before that."""
        told = False
        while not await asyncio.to_thread(group.wait, _ASK_EVERY_S):
            if await lead.is_over.remote(order.job_id, order.attempt):
                return False
            if not told:
                told = True
                words = "waits for Ray: other users of the cluster hold its devices (`ray status` shows them)"
                await lead.note_trouble.remote(order.job_id, order.attempt, words)
        if told:
            await lead.note_trouble.remote(order.job_id, order.attempt, "")
        return True

    async def _start(self, order: ClusterOrder, document: Mapping[str, Any], agents: list[Any]) -> None:
        lead, *others = agents
        await lead.start.remote(document)
        if others:
            place = await lead.meeting.remote(document)
            if place is not None:
                place["master_address"] = order.parts[0].address
                await asyncio.gather(*(agent.start.remote(document, place) for agent in others))

    async def _see_through(self, order: ClusterOrder, document: Mapping[str, Any], agents: list[Any]) -> None:
        ends = {asyncio.ensure_future(_ended(agent, order)): agent for agent in agents}
        waiting = set(ends)
        while waiting:
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            fates = {end.result() for end in done}
            if fates & {"failed", "lost"}:
                _, waiting = await asyncio.wait(waiting, timeout=SETTLE_S) if waiting else (set(), waiting)
                await asyncio.gather(*(ends[end].kill.remote(document) for end in waiting))
            elif "stopped" in fates:
                # The stop request went to all parts; one that never started is called off here.
                await asyncio.gather(*(ends[end].stop.remote(document) for end in waiting))


def _leave(life: asyncio.Task[None]) -> None:
    """Nobody may be waiting: a bridge that was killed does not remove the owner of an attempt that failed."""
    life.get_loop().call_later(_GONE_AFTER_S, os._exit, 0)


def _group_of(order: ClusterOrder) -> Any:
    return placement_group(
        [{part.resource: len(part.devices)} for part in order.parts],
        strategy="PACK",
        name=order.name,
        bundle_label_selector=[{"ray.io/node-id": part.node_id} for part in order.parts],
    )


async def _ended(agent: Any, order: ClusterOrder) -> str:
    while True:
        try:
            return str(await agent.ended.remote(order.job_id, order.attempt))
        except ray.exceptions.ActorUnavailableError:  # it is being restarted, and will know
            await asyncio.sleep(_ASK_EVERY_S)
        except ray.exceptions.RayActorError:
            return "lost"
