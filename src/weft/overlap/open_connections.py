"""What a handle keeps open: process groups with their connections and threads, and threads that answer for state.

Closing them is collective, so detach() does it.  When a model is dropped without detach(), nothing is closed at first:
each worker's garbage collector runs at another time.  The next weft.overlap on the same process group, which is
collective too, closes the connections of models that are gone on every worker.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from weft.overlap.state_service import StateService
from weft.overlap.transport import Transport
from weft.overlap.transport.groups import end_group, is_open

# For each of the user's process groups, in the order in which they were made: the same on all of its workers.  Weak, so
# that nothing outlives a group that the user has destroyed.
_OPEN: weakref.WeakKeyDictionary[dist.ProcessGroup, list[Connections]] = weakref.WeakKeyDictionary()


class Connections:
    """Those of one handle."""

    def __init__(
        self,
        group: dist.ProcessGroup,
        services: Sequence[StateService | None],
        transports: Sequence[Transport],
    ) -> None:
        self.join_group: dist.ProcessGroup | None = None
        self._services = [service for service in services if service is not None]
        self._transports = transports
        self._owner: Callable[[], Any] = lambda: None
        _OPEN.setdefault(group, []).append(self)

    def belong_to(self, handle: object) -> None:
        self._owner = weakref.ref(handle)

    @property
    def is_abandoned(self) -> bool:
        return self._owner() is None

    def close(self, group: dist.ProcessGroup) -> None:
        """Collective.  Nothing may be under way that anybody still wants."""
        _OPEN[group].remove(self)
        for service in self._services:
            service.leave()
        if is_open(group):
            dist.barrier(group)  # a connection closed by one worker is an error to one that still reads it
        for service in self._services:
            service.close()
        for transport in self._transports:
            transport.close()
        if self.join_group is not None:
            end_group(self.join_group)


def close_abandoned(group: dist.ProcessGroup, device: torch.device) -> None:
    """Close what no worker has a handle for any more.  Collective."""
    ours = list(_OPEN.get(group, ()))
    if not ours:
        return
    gc.collect()  # model, optimizer and handle hold each other
    abandoned = torch.tensor([int(connections.is_abandoned) for connections in ours], device=device)
    dist.all_reduce(abandoned, dist.ReduceOp.MIN, group=group)
    for connections, is_abandoned in zip(ours, abandoned.tolist(), strict=True):
        if is_abandoned:
            connections.close(group)
