"""What the nodes of an attempt receive before it starts: the job's code, and the checkpoint that it resumes from."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from pathlib import Path
from typing import Any

from weft.engines.ray.checkpoint_relay import CheckpointRelay
from weft.engines.ray.cluster_order import ClusterOrder
from weft.engines.ray.code_package import pack
from weft.engines.ray.node_checkpoints import PIECE_BYTES


class Deliveries:
    """Copies from the home on the controller's machine; nothing to do if all nodes see it."""

    def __init__(self, jobs: Path, *, relay: bool, ship: bool) -> None:
        """``jobs``: the folder of the home that has one folder per job."""
        self._jobs = jobs
        self._ship = ship
        self._packing: dict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self.checkpoints = CheckpointRelay(jobs) if relay else None

    async def bring(self, order: ClusterOrder, agent: Any) -> None:
        """Copy to one node, unless the attempt has already been ordered there."""
        if (self._ship or self.checkpoints) and not await agent.is_known.remote(order.job_id, order.attempt):
            if self._ship and not await agent.has_code.remote(order.job_id):
                await self._bring_code(order, agent)
            if self.checkpoints is not None:
                await self.checkpoints.deliver(order.job_id, agent)

    async def _bring_code(self, order: ClusterOrder, agent: Any) -> None:
        package = self._jobs / order.job_id / "code.zip"
        async with self._packing[order.job_id]:  # once, for all nodes
            await asyncio.to_thread(pack, Path(order.cwd), package)
        size, offset = package.stat().st_size, 0
        with package.open("rb") as file:
            while offset < size:
                piece = await asyncio.to_thread(file.read, PIECE_BYTES)
                is_last = offset + len(piece) >= size
                await agent.put_code.remote(order.job_id, offset, piece, is_last)
                offset += len(piece)
