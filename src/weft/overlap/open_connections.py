"""What a handle keeps open: process groups with their connections and threads, and state service threads.

Closing them is collective, so detach() does it.  When a model is dropped without detach(), nothing is closed at first:
the workers' garbage collectors run at different times.  The next weft.overlap on the same process group, which is also
collective, closes the connections of models that are gone on every worker.  So does the end of the process group.

Until then, the messages in flight are kept, with their memory: another worker may be up to a step behind, and gloo
drops a message whose sender or receiver has been garbage-collected, without an error on either side.
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
from weft.overlap.transport.base import Exchange
from weft.overlap.transport.groups import end_group, is_open

# For each of the user's process groups, in order of creation, which is the same on all of its workers.  Weak, so that
# nothing outlives a group that the user has destroyed.
_OPEN: weakref.WeakKeyDictionary[dist.ProcessGroup, list[Connections]] = weakref.WeakKeyDictionary()


class Connections:
    """The connections of one handle."""

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
        self._exchanges: Sequence[list[Exchange]] = ()
        # torch may keep a destroyed group alive (functions with a default group), and with it what it is the key of.
        for destroyed in [other for other in _OPEN if not is_open(other)]:
            del _OPEN[destroyed]
        _OPEN.setdefault(group, []).append(self)

    def belong_to(self, handle: object, exchanges: Sequence[list[Exchange]]) -> None:
        """``exchanges``: of each part, always those of its current plan."""
        self._owner = weakref.ref(handle, self._keep_what_is_in_flight)
        self._exchanges = exchanges

    def _keep_what_is_in_flight(self, _: object) -> None:
        self._exchanges = [[exchange for exchange in part if exchange.is_in_flight] for part in self._exchanges]

    @property
    def is_abandoned(self) -> bool:
        return self._owner() is None

    def close(self, group: dist.ProcessGroup) -> None:
        """Collective.  Nothing that is still needed may be in flight."""
        _OPEN[group].remove(self)
        for service in self._services:
            service.leave()
        if is_open(group):
            dist.barrier(group)  # closing a connection is an error for a worker that still reads it
        self._exchanges = ()  # no worker waits for them
        for service in self._services:
            service.close()
        for transport in self._transports:
            transport.close()
        if self.join_group is not None:
            end_group(self.join_group)


def close_abandoned(group: dist.ProcessGroup, device: torch.device) -> None:
    """Close the connections whose handle is gone on every worker.  Collective."""
    ours = list(_OPEN.get(group, ()))
    if not ours:
        return
    gc.collect()  # model, optimizer and handle form reference cycles
    abandoned = torch.tensor([int(connections.is_abandoned) for connections in ours], device=device)
    dist.all_reduce(abandoned, dist.ReduceOp.MIN, group=group)
    for connections, is_abandoned in zip(ours, abandoned.tolist(), strict=True):
        if is_abandoned:
            connections.close(group)
