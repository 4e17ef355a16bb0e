"""Tagged messages between any two workers, over gloo.

[Note: one way]  Each connection carries messages in one direction only: messages to a higher rank use one group, those
to a lower rank another.  gloo's network thread tries a connection's lock and, while a sender holds it, polls the kernel
again immediately, as long as there is something to read.  With both directions on one connection there always is, and
if that thread shares a core with the sender, it keeps the sender from releasing the lock: 35,000 polls per step.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection
from typing import Any

import torch
import torch.distributed as dist

from weft.errors import OverlapError
from weft.overlap.layout import MAX_MESSAGES
from weft.overlap.transport.base import Exchange
from weft.overlap.transport.groups import end_group
from weft.overlap.transport.receive_window import Connection, limit_window

# A tag names step, kind, and bucket, so that messages of different steps can never be confused.
_NUM_DISTINCT_STEPS = 1 << 8


class MessageKind(enum.IntEnum):
    """What a message carries."""

    REDUCE = 0
    GATHER = 1
    ARRIVAL = 2  # follows a gather's values, so that the receiver's neighbors can see that those have arrived


_NUM_KINDS = 4

Call = Callable[[list[torch.Tensor], int, int], Any]


class Messages:
    """Uses two groups of our own, so that tags never collide with the user's."""

    def __init__(
        self, upward: dist.ProcessGroup, downward: dist.ProcessGroup, connections: Collection[Connection] = ()
    ) -> None:
        self.rank = dist.get_rank(upward)
        self.num_workers = dist.get_world_size(upward)
        self.group = upward
        self._downward = downward
        self._connections = connections
        up: Any = upward._get_backend(torch.device("cpu"))
        down: Any = downward._get_backend(torch.device("cpu"))
        # Start with the next rank, so that no two workers begin with the same receiver.
        self.others = [(self.rank + k) % self.num_workers for k in range(1, self.num_workers)]
        self.send_to: dict[int, Call] = {o: (up if o > self.rank else down).send for o in self.others}
        self.recv_from: dict[int, Call] = {o: (up if o < self.rank else down).recv for o in self.others}

    def tag(self, exchange: Exchange, step: int, kind: MessageKind) -> int:
        return ((step % _NUM_DISTINCT_STEPS) * _NUM_KINDS + kind) * MAX_MESSAGES + exchange.index

    def wait(self, works: list[Any], what: str) -> None:
        """Wait for all of them, and forget them even if one fails; ``what`` completes "failed while waiting for"."""
        try:
            for work in works:
                work.wait()
        except RuntimeError as error:
            raise OverlapError(
                f"worker {self.rank} failed while waiting for {what} ({error}): another worker has stopped or has left "
                "the training loop; look for the first error in its log"
            ) from error
        finally:
            works.clear()

    def limit_window(self, num_bytes: int) -> None:
        limit_window(self._connections, num_bytes)

    def all_reduce(self, values: torch.Tensor, maximum: bool) -> torch.Tensor:
        dist.all_reduce(values, dist.ReduceOp.MAX if maximum else dist.ReduceOp.SUM, group=self.group)
        return values

    def broadcast(self, values: torch.Tensor) -> Any:
        return dist.broadcast(values, group_src=0, group=self.group, async_op=True)

    def close(self) -> None:
        self.send_to.clear()
        self.recv_from.clear()
        for group in (self.group, self._downward):
            end_group(group)
        del self.group, self._downward
