"""gloo over TCP: a true reduce-scatter and an all-gather made of direct messages.

[Note: direct messages]  gloo's own ``reduce_scatter_tensor`` moves the bytes of a whole all-reduce, and its
``all_gather`` and ``all_to_all`` run on two threads per group, in call order, with copies on the way.  Sends
and receives with a tag have none of that: the receiver names the memory, gloo's one network thread fills
it, nothing is copied, any number may be under way, and order does not matter.  Each worker sends each other
worker its share directly: the volume of a ring, (P-1)/P of the bucket, in one latency instead of P-1.

[Note: one way]  A connection carries messages one way only: those to a worker of higher rank go over one group, those
to a lower rank over another.  gloo's network thread tries a connection's lock and, while a sender has it, asks the
kernel again at once, for as long as something is there to be read.  With both ways on one connection something always
is, and where that thread shares a core with the sender it keeps it from letting go: 35,000 questions a step.

[Note: stamp]  gloo cannot say whether a receive has finished without waiting for it.  The last number of a
message is a stamp: the receiver writes -1 there before the message may come, the sender writes a value >= 0.
TCP fills memory front to back and the two differ in the sign, i.e. in the very last byte, so a stamp >= 0
means that all of it is there.  It is only a hint on when to call wait(), which is what makes it sure.

[Note: order of the sum]  Contributions are added in rank order on every worker, whatever arrives first, so
results do not depend on timing, on the plan, or on overlap being switched on.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
import torch.distributed as dist

from weft.errors import OverlapError
from weft.overlap.device import CPU, Device
from weft.overlap.layout import MAX_MESSAGES
from weft.overlap.transport.base import Exchange
from weft.overlap.transport.groups import end_group
from weft.overlap.transport.receive_window import Connection, limit_window, window_bytes
from weft.perf.link import Link

_HALF = (torch.bfloat16, torch.float16)

# A tag names step, kind and bucket: a worker that lost a step can never mix its messages with another one's.
_STEPS_TOLD_APART = 1 << 8


class GlooTransport:
    """Direct messages on two groups of our own, so that tags never meet the user's."""

    needs_stage = True
    ordered = False
    device: Device = CPU

    def __init__(
        self, upward: dist.ProcessGroup, downward: dist.ProcessGroup, connections: Collection[Connection] = ()
    ) -> None:
        self.rank = dist.get_rank(upward)
        self.num_workers = dist.get_world_size(upward)
        self._group = upward
        self._downward = downward
        self._connections = connections
        up: Any = upward._get_backend(torch.device("cpu"))
        down: Any = downward._get_backend(torch.device("cpu"))
        # Start with the neighbour above: no two workers then begin with the same receiver.
        self._others = [(self.rank + k) % self.num_workers for k in range(1, self.num_workers)]
        self._send_to = {o: (up if o > self.rank else down).send for o in self._others}
        self._recv_from = {o: (up if o < self.rank else down).recv for o in self._others}

    def adapt(self, link: Link) -> bool:
        window = window_bytes(self.num_workers, link)
        if window is None:
            return False
        limit_window(self._connections, window)
        return True

    def open_reduce(self, exchange: Exchange, tag: int) -> None:
        tag = self._tag(exchange, tag, gather=False)
        for o in self._others:
            exchange.stage[o][-1] = -1.0
        exchange.reduce_works = [self._recv_from[o]([exchange.stage[o]], o, tag) for o in self._others]
        exchange.reduced = None

    def launch_reduce(self, exchange: Exchange, tag: int) -> None:
        tag = self._tag(exchange, tag, gather=False)
        exchange.send[:, -1] = 1.0
        exchange.send_works += [self._send_to[o]([exchange.send[o]], o, tag) for o in self._others]

    def reduce_arrived(self, exchange: Exchange) -> bool:
        return all(exchange.stage[o][-1].item() >= 0.0 for o in self._others)

    def finish_reduce(self, exchange: Exchange) -> torch.Tensor:
        if exchange.reduced is None:
            self._wait(exchange.reduce_works, "a gradient")
            rows = exchange.stage
            self._spread_carry(exchange)
            # Half-precision contributions are summed in single precision: one rounding instead of P-1.
            total = rows[0].float() if rows[0].dtype in _HALF else rows[0]
            for row in rows[1:]:
                total.add_(row)
            exchange.reduced = total
        return exchange.reduced

    def _spread_carry(self, exchange: Exchange) -> None:
        """DDP adds the old gradient to each worker's new one before it averages; with two workers halves are exact."""
        carry = exchange.carry
        if carry is not None and self.num_workers == 2 and carry.dtype == exchange.stage[0].dtype:
            for row in exchange.stage:
                row[:-2].add_(carry[:-2], alpha=0.5)
            exchange.carry = None

    def open_gather(self, exchange: Exchange, tag: int) -> None:
        tag = self._tag(exchange, tag, gather=True)
        shards = exchange.region.view(self.num_workers, exchange.shard)
        exchange.gather_works = [self._recv_from[o]([shards[o]], o, tag) for o in self._others]

    def launch_gather(self, exchange: Exchange, tag: int) -> None:
        tag = self._tag(exchange, tag, gather=True)
        own = exchange.region.view(self.num_workers, exchange.shard)[self.rank]
        exchange.send_works += [self._send_to[o]([own], o, tag) for o in self._others]

    def finish_gather(self, exchange: Exchange) -> None:
        self._wait(exchange.gather_works, "a parameter")

    def gather_ended(self, exchange: Exchange) -> bool:
        return True  # whoever waited has waited for everybody

    def settle_sends(self, exchange: Exchange) -> None:
        self._wait(exchange.send_works, "the end of a send")

    def all_reduce(self, values: torch.Tensor, maximum: bool = False) -> torch.Tensor:
        dist.all_reduce(values, dist.ReduceOp.MAX if maximum else dist.ReduceOp.SUM, group=self._group)
        return values

    def broadcast(self, values: torch.Tensor) -> Any:
        return dist.broadcast(values, group_src=0, group=self._group, async_op=True)

    def close(self) -> None:
        self._send_to.clear()
        self._recv_from.clear()
        for group in (self._group, self._downward):
            end_group(group)
        del self._group, self._downward

    def _tag(self, exchange: Exchange, step: int, gather: bool) -> int:
        return ((step % _STEPS_TOLD_APART) * 2 + gather) * MAX_MESSAGES + exchange.index

    def _wait(self, works: list[Any], what: str) -> None:
        try:
            for work in works:
                work.wait()
        except RuntimeError as error:
            raise OverlapError(
                f"worker {self.rank} waited for {what} of another worker that did not come ({error}): another "
                "worker has stopped or has left the training loop; look for the first error in its log"
            ) from error
        finally:
            works.clear()
