"""gloo over TCP: a true reduce-scatter and all-gather, built from direct messages.

[Note: direct messages]  gloo's own ``reduce_scatter_tensor`` moves the bytes of a whole all-reduce, and its
``all_gather`` and ``all_to_all`` run on two threads per group, in call order, with extra copies.  Tagged sends and
receives avoid all of that: the receiver names the memory, gloo's single network thread fills it, nothing is copied, any
number can be in flight, and their order does not matter.  Each worker sends each other worker its share directly: the
volume of a ring, (P-1)/P of the bucket, at the cost of one latency instead of P-1.

[Note: stamp]  gloo cannot say whether a receive has finished without waiting for it.  The last number of a message is a
stamp: the receiver writes -1 there before the message can arrive, and the sender writes a value >= 0.  TCP fills memory
from front to back, and the two values differ in the sign, i.e. in the very last byte, so a stamp >= 0 means that the
whole message has arrived.  This is only a hint about when to call wait(), which gives the guarantee.

Contributions are added in a fixed order (host_sum.py), no matter which arrives first.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from weft.overlap.device import CPU, Device
from weft.overlap.transport.base import NUM_SIGNALS, Exchange
from weft.overlap.transport.host_layout import HostLayout
from weft.overlap.transport.host_sum import total_by_host
from weft.overlap.transport.messages import MessageKind, Messages
from weft.overlap.transport.receive_window import window_bytes
from weft.perf.link import Link


class GlooTransport:
    """Each worker sends each other worker its share directly."""

    ordered = False
    needs_landing = False
    device: Device = CPU

    def __init__(self, messages: Messages, layout: HostLayout) -> None:
        self.messages = messages
        self.rank = messages.rank
        self.num_workers = messages.num_workers
        self.num_stage_rows = self.num_workers - 1
        self._max_senders = self.num_workers - 1
        self._layout = layout

    @property
    def quiet_group(self) -> dist.ProcessGroup | None:
        return self.messages.quiet_group

    def allocate(self, num_elements: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        return torch.empty(num_elements, dtype=dtype, device=device)

    def adapt(self, link: Link) -> bool:
        window = window_bytes(self._max_senders + 1, link)
        self.messages.set_window(window)
        return window is None and self.num_workers > 2

    def open_reduce(self, exchange: Exchange, tag: int) -> None:
        tag = self.messages.tag(exchange, tag, MessageKind.REDUCE)
        rows = self._rows(exchange)
        for o in self.messages.others:
            rows[o][-1] = -1.0
        exchange.reduce_works = [self.messages.recv_from[o](rows[o], tag) for o in self.messages.others]
        exchange.reduced = None

    def launch_reduce(self, exchange: Exchange, tag: int) -> None:
        tag = self.messages.tag(exchange, tag, MessageKind.REDUCE)
        exchange.send[:, -1] = 1.0
        exchange.send_works += [self.messages.send_to[o](exchange.send[o], tag) for o in self.messages.others]

    def reduce_arrived(self, exchange: Exchange) -> bool:
        return all(row[-1].item() >= 0.0 for row in exchange.stage)

    def finish_reduce(self, exchange: Exchange) -> torch.Tensor:
        if exchange.reduced is None:
            self.messages.wait(exchange.reduce_works, "gradients")
            rows = self._rows(exchange)
            self._spread_carry(exchange, rows)
            exchange.reduced = total_by_host(rows, self._layout)
        return exchange.reduced

    def _rows(self, exchange: Exchange) -> list[torch.Tensor]:
        """All workers' contributions to our shard; our own stays where it was collected."""
        return [*exchange.stage[: self.rank], exchange.send[self.rank], *exchange.stage[self.rank :]]

    def _spread_carry(self, exchange: Exchange, rows: list[torch.Tensor]) -> None:
        """DDP adds the old gradient to each worker's new one before averaging; with two workers, halving is exact."""
        carry = exchange.carry
        if carry is not None and self.num_workers == 2 and carry.dtype == rows[0].dtype:
            for row in rows:
                row[:-NUM_SIGNALS].add_(carry[:-NUM_SIGNALS], alpha=0.5)
            exchange.carry = None

    def open_gather(self, exchange: Exchange, tag: int) -> None:
        tag = self.messages.tag(exchange, tag, MessageKind.GATHER)
        shards = exchange.region.view(self.num_workers, exchange.shard)
        exchange.gather_works = [self.messages.recv_from[o](shards[o], tag) for o in self.messages.others]

    def launch_gather(self, exchange: Exchange, tag: int) -> None:
        tag = self.messages.tag(exchange, tag, MessageKind.GATHER)
        own = exchange.region.view(self.num_workers, exchange.shard)[self.rank]
        exchange.send_works += [self.messages.send_to[o](own, tag) for o in self.messages.others]

    def finish_gather(self, exchange: Exchange) -> None:
        self.messages.wait(exchange.gather_works, "parameters")

    def gather_ended(self, exchange: Exchange) -> bool:
        return True  # waiting for one message waits for all of them

    def settle_sends(self, exchange: Exchange) -> None:
        self.messages.wait(exchange.send_works, "its sends to finish")

    def all_reduce(self, values: torch.Tensor, maximum: bool = False) -> torch.Tensor:
        return self.messages.all_reduce(values, maximum)

    def broadcast(self, values: torch.Tensor) -> Any:
        return self.messages.broadcast(values)

    def close(self) -> None:
        self.messages.close()
