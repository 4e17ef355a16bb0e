"""Nothing of a controller is left on the cluster when it shuts down without jobs."""

from __future__ import annotations

import asyncio
import contextlib

import ray
from ray.util import list_named_actors

from weft.engines.ray.attempt_owner import is_agent
from weft.engines.ray.cluster_access import actor_named

CLOSES_WITHIN_S = 10.0


async def remove_all() -> None:
    """Every actor in this controller's namespace, also those that another bridge created and this one never met."""
    names = await asyncio.to_thread(list_named_actors)
    await asyncio.gather(*map(remove, names), return_exceptions=True)


async def remove(name: str) -> None:
    """Does nothing if it is gone already."""
    actor = await asyncio.to_thread(actor_named, name)
    if actor is None:
        return
    if is_agent(name):
        with contextlib.suppress(Exception):  # one that is slow to close must not stay forever
            await asyncio.wait_for(actor.close.remote(), CLOSES_WITHIN_S)
    ray.kill(actor, no_restart=True)
