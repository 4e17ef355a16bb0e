"""The lease server of one node, kept running by the node's agent.

Jobs that share devices on several nodes form a group: the lease server on rank 0's node leads it, and binds the port
where it will publish its turn order before any worker is told about it.  Without a server, or without a lead, jobs
still run; they only share less efficiently.  So nothing here may keep a job from starting.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Mapping
from pathlib import Path

from weft.core import worker_environment as names
from weft.crossover.gpu import has_mps
from weft.crossover.lease_launch import SOCKET_NAME, ensure_server, lead_address, stop_server, tell_roles
from weft.crossover.phases import Role
from weft.engines.local.process import MARK
from weft.engines.ray.cluster_order import NodePart
from weft.errors import LeaseError

_log = logging.getLogger(__name__)

OWN = (names.LEASE, names.LEASE_DEVICE, names.LEASE_LEAD)
"""Variables that each node sets for its own workers, regardless of what the controller sends."""


class NodeLeases:
    """Used by one event loop; what may block runs in a thread."""

    def __init__(self, folder: Path, engine: Path, environment: Mapping[str, str]) -> None:
        """``environment``: what Ray was started with on this node."""
        self._folder = folder
        self._environment = environment
        # With the engine's mark, the warden ends it together with the workers.
        self._server_environment = {**os.environ, MARK: str(engine)}
        self._trouble = ""

    async def lead(self, part: NodePart) -> str:
        """The address where this node leads the group of an attempt whose rank 0 runs here; "" if it cannot."""
        try:
            return await asyncio.to_thread(lambda: lead_address(self._server(), str(part.devices[0]), part.address))
        except (LeaseError, OSError) as error:
            self._note(error)
            return ""

    def environment(self, given: Mapping[str, str], part: NodePart, lead: str) -> dict[str, str]:
        """The job's environment on this node."""
        found = {name: value for name, value in given.items() if name not in OWN}
        # On a GPU without MPS, no job can share: without a lease server, it does not try to.
        if names.LEASE not in given or (part.resource == "GPU" and not has_mps(self._environment)):
            return found
        found[names.LEASE] = str(self._folder / SOCKET_NAME)
        found[names.LEASE_DEVICE] = ",".join(map(str, part.devices))
        if lead:
            found[names.LEASE_LEAD] = lead
        return found

    async def keep(self, roles: Mapping[str, str]) -> None:
        """Keep a server running, with these roles."""
        try:
            known = {job_id: Role(role) for job_id, role in roles.items()}
            await asyncio.to_thread(lambda: tell_roles(self._server(), known))
            self._trouble = ""
        except (LeaseError, OSError) as error:
            self._note(error)

    async def close(self) -> None:
        await asyncio.to_thread(stop_server, self._folder / SOCKET_NAME)

    def _server(self) -> Path:
        return ensure_server(self._folder, environment=self._server_environment)

    def _note(self, error: Exception) -> None:
        if str(error) != self._trouble:
            _log.warning("pairs share devices uncoordinated for now: %s", error)
        self._trouble = str(error)
