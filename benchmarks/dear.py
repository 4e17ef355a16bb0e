"""DeAR as its paper describes it, to compare with: gradients are reduce-scattered under backward and gathered under the
next forward, one bucket ahead; a bucket is updated just before its first layer runs.

The idea is the paper's (arXiv 2302.12445); this code is ours, written from the abstract's description.  The paper tunes
the bucket size during training; the benchmark gives it the best of a short sweep in every row.  Update and optimizer
state are replicated.  It moves its bytes with weft's transport, adapted to the link in the same way: on a worse one
the comparison would be between transports, not between schedules.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor, nn

from weft.overlap.exchange_memory import ExchangeMemory, ExchangeShape
from weft.overlap.link_probes import measure_link
from weft.overlap.transport import Exchange, transport_for
from weft.overlap.transport.base import NUM_SIGNALS

BUCKET_BYTES = 25 * 1024 * 1024
MakeOptimizer = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]


@dataclass
class _Bucket:
    """Consecutive parameters in the order of backward, with everything that happens to them in one step."""

    parameters: list[nn.Parameter]
    optimizer: torch.optim.Optimizer
    # Its region holds the gathered gradients; the transport adds a few numbers to each row of what is sent.
    exchange: Exchange
    # Where each parameter's gradient goes before the reduction: (elements of it, place in the rows sent).
    sources: dict[nn.Parameter, list[tuple[slice, Tensor]]] = field(default_factory=dict)
    # Where it lies after the gather.
    averages: dict[nn.Parameter, Tensor] = field(default_factory=dict)
    num_ready: int = 0
    is_reducing: bool = False
    is_gathering: bool = False
    is_stale: bool = False


class Dear:
    """Trains in place: ``step()`` where the loop has ``optimizer.step()``, ``drain()`` at the end."""

    def __init__(self, model: nn.Module, make_optimizer: MakeOptimizer, *, bucket_bytes: int = BUCKET_BYTES) -> None:
        group = dist.group.WORLD
        if group is None:
            raise RuntimeError("DeAR needs a process group: call init_process_group() first")
        device = torch.device("cpu")
        self._transport = transport_for(group, device)
        if self._transport.num_workers > 2:  # as weft does
            self._transport.adapt(measure_link(self._transport, device))
        self._scale = 1.0 / self._transport.num_workers
        self._num_steps = 0
        self._buckets = [
            self._make_bucket(index, parameters, make_optimizer)
            for index, parameters in enumerate(_split(model, bucket_bytes))
        ]
        self._bucket_of = {p: index for index, bucket in enumerate(self._buckets) for p in bucket.parameters}
        for parameter in self._bucket_of:
            parameter.register_post_accumulate_grad_hook(self._gradient_ready)  # type: ignore[no-untyped-call]
        for module in model.modules():
            own = {self._bucket_of[p] for p in module.parameters(recurse=False) if p in self._bucket_of}
            if own:
                module.register_forward_pre_hook(self._before_forward(sorted(own, reverse=True)))

    def step(self) -> None:
        """End of backward: all shards are summed, the first layer's bucket starts to be gathered."""
        for bucket in self._buckets:
            if bucket.num_ready == 0:
                self._open(bucket)
            if not bucket.is_reducing:
                self._reduce(bucket)
        for bucket in self._buckets:
            total = self._transport.finish_reduce(bucket.exchange)
            _own_shard(bucket.exchange, self._transport.rank).copy_(total[: bucket.exchange.shard])
            bucket.is_reducing, bucket.num_ready, bucket.is_stale = False, 0, True
        self._num_steps += 1
        self._gather(len(self._buckets) - 1)

    def drain(self) -> None:
        """Finish the last step: gather and update what no forward has asked for yet."""
        for index in reversed(range(len(self._buckets))):
            self._refresh(index)
        for bucket in self._buckets:
            self._transport.settle_sends(bucket.exchange)

    def close(self) -> None:
        """Close its connections while the other workers still listen; nothing may be in flight."""
        self._transport.close()

    def state_tensors(self) -> list[Tensor]:
        """Optimizer state that this worker holds."""
        return [
            value
            for bucket in self._buckets
            for state in bucket.optimizer.state.values()
            for value in state.values()
            if isinstance(value, Tensor)
        ]

    def _make_bucket(self, index: int, parameters: list[nn.Parameter], make_optimizer: MakeOptimizer) -> _Bucket:
        workers, dtype = self._transport.num_workers, parameters[0].dtype
        shard = -(-sum(p.numel() for p in parameters) // workers)
        region = torch.zeros(workers * shard, dtype=dtype)
        shape = ExchangeShape(shard, shard + NUM_SIGNALS, dtype)
        memory = ExchangeMemory(self._transport)
        memory.clear([(shape, region)])
        exchange = memory.make(index, shape, region)
        send = exchange.send.zero_()
        bucket = _Bucket(parameters, make_optimizer(parameters), exchange)
        start = 0
        for parameter in parameters:
            stop = start + parameter.numel()
            bucket.averages[parameter] = region[start:stop].view_as(parameter)
            bucket.sources[parameter] = list(_pieces(send, shard, start, stop))
            start = stop
        return bucket

    def _gradient_ready(self, parameter: Tensor) -> None:
        if not isinstance(parameter, nn.Parameter) or parameter.grad is None:
            return
        bucket = self._buckets[self._bucket_of[parameter]]
        if bucket.num_ready == 0:
            self._open(bucket)
        gradient = parameter.grad.reshape(-1)
        for elements, place in bucket.sources[parameter]:
            torch.mul(gradient[elements], self._scale, out=place)
        parameter.grad = None
        bucket.num_ready += 1
        if bucket.num_ready == len(bucket.parameters):
            self._reduce(bucket)

    def _open(self, bucket: _Bucket) -> None:
        """The bucket's memory is ours to write again, and the others may send."""
        self._transport.settle_sends(bucket.exchange)
        self._transport.open_reduce(bucket.exchange, self._num_steps)

    def _reduce(self, bucket: _Bucket) -> None:
        self._transport.launch_reduce(bucket.exchange, self._num_steps)
        bucket.is_reducing = True

    def _gather(self, index: int) -> None:
        bucket = self._buckets[index]
        if bucket.is_stale and not bucket.is_gathering:
            self._transport.open_gather(bucket.exchange, self._num_steps)
            self._transport.launch_gather(bucket.exchange, self._num_steps)
            bucket.is_gathering = True

    def _before_forward(self, indices: list[int]) -> Callable[[nn.Module, object], None]:
        def refresh(module: nn.Module, args: object) -> None:
            for index in indices:
                self._refresh(index)

        return refresh

    def _refresh(self, index: int) -> None:
        """Make the parameters of a bucket current; the next bucket of the forward travels meanwhile."""
        bucket = self._buckets[index]
        if not bucket.is_stale:
            return
        self._gather(index)
        if index > 0:
            self._gather(index - 1)
        self._transport.finish_gather(bucket.exchange)
        bucket.is_gathering, bucket.is_stale = False, False
        for parameter, average in bucket.averages.items():
            parameter.grad = average
        bucket.optimizer.step()
        bucket.optimizer.zero_grad(set_to_none=True)


def _own_shard(exchange: Exchange, rank: int) -> Tensor:
    return exchange.region[rank * exchange.shard : (rank + 1) * exchange.shard]


def _pieces(send: Tensor, shard: int, start: int, stop: int) -> Iterator[tuple[slice, Tensor]]:
    """Elements ``start`` to ``stop`` of a bucket, cut where one worker's shard ends and the next begins."""
    position = start
    while position < stop:
        row, offset = divmod(position, shard)
        length = min(shard - offset, stop - position)
        yield slice(position - start, position - start + length), send[row, offset : offset + length]
        position += length


def _split(model: nn.Module, bucket_bytes: int) -> list[list[nn.Parameter]]:
    """Parameters in reverse order of definition, cut where the next one would no longer fit."""
    buckets: list[list[nn.Parameter]] = []
    room_bytes = 0
    for parameter in reversed([p for p in model.parameters() if p.requires_grad]):
        num_bytes = parameter.numel() * parameter.element_size()
        if not buckets or num_bytes > room_bytes:
            buckets.append([])
            room_bytes = bucket_bytes
        buckets[-1].append(parameter)
        room_bytes -= num_bytes
    return buckets
