"""NCCL: native collectives, ordered by streams; the host never blocks.

Not measured: the machines this was written on have no GPU.  Tested: that it issues the same collectives in the same
order as the other transports (tests/unit/overlap/test_nccl_calls.py), that streams are ordered wherever memory is used
(tests/streams), and, where GPUs are present, `weft doctor --gpu` and tests/numerics/test_nccl.py.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from weft.overlap.device import Arrival, Device
from weft.overlap.transport.base import Exchange
from weft.overlap.transport.groups import end_group
from weft.perf.link import Link


class NcclTransport:
    """Separate communicators for reduce-scatter and all-gather, so that neither queues behind the other."""

    num_stage_rows = 0
    needs_landing = False
    ordered = True
    quiet_group = None

    def __init__(self, reduce_group: dist.ProcessGroup, gather_group: dist.ProcessGroup, device: Device) -> None:
        self.rank = dist.get_rank(reduce_group)
        self.num_workers = dist.get_world_size(reduce_group)
        self.device = device
        self._reduce_group = reduce_group
        self._gather_group = gather_group

    def allocate(self, num_elements: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        return torch.empty(num_elements, dtype=dtype, device=device)

    def adapt(self, link: Link) -> bool:
        return False  # NCCL has its own flow control

    def open_reduce(self, exchange: Exchange, tag: int) -> None:
        exchange.reduced = None

    def launch_reduce(self, exchange: Exchange, tag: int) -> None:
        total = exchange.send[self.rank]
        # In place: NCCL allows the output to be this rank's row of the input.
        work = dist.reduce_scatter_tensor(
            total, exchange.send.view(-1), dist.ReduceOp.SUM, group=self._reduce_group, async_op=True
        )
        exchange.reduce_works = [Arrival(self.device, work)]
        exchange.reduced = total

    def reduce_arrived(self, exchange: Exchange) -> bool:
        # Always true: the update is queued behind it on the stream, so there is nothing to poll.
        return bool(exchange.reduce_works) or exchange.reduced is not None

    def finish_reduce(self, exchange: Exchange) -> torch.Tensor:
        for arrival in exchange.reduce_works:
            arrival.order()
        assert exchange.reduced is not None
        return exchange.reduced

    def open_gather(self, exchange: Exchange, tag: int) -> None:
        pass

    def launch_gather(self, exchange: Exchange, tag: int) -> None:
        own = exchange.region.view(self.num_workers, exchange.shard)[self.rank]
        work = dist.all_gather_into_tensor(exchange.region, own, group=self._gather_group, async_op=True)
        exchange.gather_works = [Arrival(self.device, work)]

    def finish_gather(self, exchange: Exchange) -> None:
        # Kept until the next gather: another stream may read later, and must do its own waiting.
        for arrival in exchange.gather_works:
            arrival.order()

    def gather_ended(self, exchange: Exchange) -> bool:
        return all(arrival.ended() for arrival in exchange.gather_works)

    def settle_sends(self, exchange: Exchange) -> None:
        pass  # the stream that overwrites what was sent has already waited for the collective

    def all_reduce(self, values: torch.Tensor, maximum: bool = False) -> torch.Tensor:
        op = dist.ReduceOp.MAX if maximum else dist.ReduceOp.SUM
        # Asynchronous, so that it runs on the communicator's own stream, behind what is queued there.
        dist.all_reduce(values, op, group=self._reduce_group, async_op=True).wait()
        return values

    def broadcast(self, values: torch.Tensor) -> Any:
        return dist.broadcast(values, group_src=0, group=self._gather_group, async_op=True)

    def close(self) -> None:
        for group in (self._reduce_group, self._gather_group):
            end_group(group)
        del self._reduce_group, self._gather_group
