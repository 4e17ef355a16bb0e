"""Tagged messages between any two workers, or between those that need them, over gloo.

[Note: one way]  Each connection carries messages in one direction only: messages to a higher rank use one group, those
to a lower rank another.  gloo's network thread tries a connection's lock and, while a sender holds it, polls the kernel
again immediately, as long as there is something to read.  With both directions on one connection there always is, and
if that thread shares a core with the sender, it keeps the sender from releasing the lock: 35,000 polls per step.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from weft.errors import OverlapError
from weft.overlap.layout import MAX_MESSAGES
from weft.overlap.transport.base import Exchange
from weft.overlap.transport.congestion import avoid_bbr
from weft.overlap.transport.groups import end_group
from weft.overlap.transport.receive_window import Connection, hold_window, limit_window, release_window

# A tag names step, kind, and bucket, so that messages of different steps can never be confused.
_NUM_DISTINCT_STEPS = 1 << 8


class MessageKind(enum.IntEnum):
    """What a message carries."""

    REDUCE = 0
    GATHER = 1
    ARRIVAL = 2  # follows a gather's values, so that the receiver's neighbors can see that those have arrived


_NUM_KINDS = 4

Call = Callable[[torch.Tensor, int], Any]


@dataclass(frozen=True, slots=True)
class Circle:
    """Workers, all of which are connected to each other, and one group per direction: see [Note: one way]."""

    members: Sequence[int]
    upward: dist.ProcessGroup
    downward: dist.ProcessGroup


class Messages:
    """Uses groups of our own, so that tags never collide with the user's."""

    def __init__(
        self, group: dist.ProcessGroup, circles: Sequence[Circle], connections: Collection[Connection] = ()
    ) -> None:
        """``group`` has all workers; ``circles`` are those that this worker is in."""
        self.rank = dist.get_rank(group)
        self.num_workers = dist.get_world_size(group)
        self.group = group
        self._groups = [direction for circle in circles for direction in (circle.upward, circle.downward)]
        self._connections = connections
        avoid_bbr(connections)
        # One sender has no competitor.
        self._limits_windows = self.num_workers > 2
        if self._limits_windows:
            hold_window(connections)
        # Start with the next rank, so that no two workers begin with the same receiver.
        self.others = [(self.rank + k) % self.num_workers for k in range(1, self.num_workers)]
        self.send_to: dict[int, Call] = {}
        self.recv_from: dict[int, Call] = {}
        for circle in circles:
            up: Any = circle.upward._get_backend(torch.device("cpu"))
            down: Any = circle.downward._get_backend(torch.device("cpu"))
            for number, other in enumerate(circle.members):
                if other != self.rank:
                    self.send_to[other] = partial(_call, (up if other > self.rank else down).send, number)
                    self.recv_from[other] = partial(_call, (up if other < self.rank else down).recv, number)

    @property
    def quiet_group(self) -> dist.ProcessGroup | None:
        """A group of all workers that carries no messages."""
        return None if self.group in self._groups else self.group

    def tag(self, exchange: Exchange, step: int, kind: MessageKind) -> int:
        return ((step % _NUM_DISTINCT_STEPS) * _NUM_KINDS + kind) * MAX_MESSAGES + exchange.index

    def wait(self, works: list[Any], what: str) -> None:
        """Wait for all of them, and forget them if one fails; ``what`` completes "failed while waiting for"."""
        try:
            settle(works)
        except RuntimeError as error:
            works.clear()
            raise OverlapError(
                f"worker {self.rank} failed while waiting for {what} ({error}): another worker has stopped or has left "
                "the training loop; look for the first error in its log"
            ) from error

    def set_window(self, num_bytes: int | None) -> None:
        """What each of the others may have in flight to this worker; with None, TCP decides."""
        if num_bytes is not None:
            limit_window(self._connections, num_bytes)
        elif self._limits_windows:
            release_window(self._connections)

    def all_reduce(self, values: torch.Tensor, maximum: bool) -> torch.Tensor:
        dist.all_reduce(values, dist.ReduceOp.MAX if maximum else dist.ReduceOp.SUM, group=self.group)
        return values

    def broadcast(self, values: torch.Tensor) -> Any:
        return dist.broadcast(values, group_src=0, group=self.group, async_op=True)

    def close(self) -> None:
        self.send_to.clear()
        self.recv_from.clear()
        for group in (self.group, *self._groups):
            end_group(group)
        del self.group, self._groups


def settle(works: list[Any]) -> None:
    """Wait for all of them, and forget each one when it is done: after an interrupt, the rest can be waited for.

    gloo counts each message once, and a signal's exception comes right after the wait that it interrupts.
    """
    while works:
        if not (isinstance(works[0], dist.Work) and works[0].is_completed()):
            works[0].wait()
        del works[0]


def _call(call: Callable[[list[torch.Tensor], int, int], Any], number: int, tensor: torch.Tensor, tag: int) -> Any:
    return call([tensor], number, tag)
