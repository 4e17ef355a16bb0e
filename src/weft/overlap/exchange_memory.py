"""The memory of exchanges: the transport allocates what it has to access itself, the rest is ordinary memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch

from weft.overlap.transport.base import Exchange, Transport

# Total buffer sizes differ a little between plans: parameters that are cut count in two buckets.
_SPARE = 1.02
_ALIGN = 64

Kind = tuple[torch.dtype, torch.device]
Allocate = Callable[[int, torch.dtype, torch.device], torch.Tensor]


def _allocate(num_elements: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    return torch.empty(num_elements, dtype=dtype, device=device)


class Arena:
    """Memory for the buckets, one block per dtype and device, reused by plan after plan.

    Tuning tries many plans.  If each bucket allocated its own buffers, those of one plan would not fit into the holes
    that another one left, and the process would grow with every trial.
    """

    def __init__(self, allocate: Allocate = _allocate) -> None:
        self._allocate = allocate
        self._memory: dict[Kind, torch.Tensor] = {}
        self._num_used: dict[Kind, int] = {}

    def clear(self, sizes: dict[Kind, list[int]]) -> None:
        """Free everything, and make room for buffers of these sizes."""
        self._num_used = {}
        for kind, lengths in sizes.items():
            needed = sum(map(_padded, lengths))
            if kind not in self._memory or self._memory[kind].numel() < needed:
                self._memory.pop(kind, None)  # before allocating a larger one
                self._memory[kind] = self._allocate(int(needed * _SPARE), *kind)

    def take(self, kind: Kind, length: int) -> torch.Tensor:
        """The next ``length`` elements, not zeroed."""
        start = self._num_used.get(kind, 0)
        self._num_used[kind] = start + _padded(length)
        return self._memory[kind][start : start + length]


def _padded(length: int) -> int:
    return -(-length // _ALIGN) * _ALIGN


@dataclass(frozen=True, slots=True)
class ExchangeShape:
    """``row`` elements of ``dtype`` go to each worker; the first ``shard`` of them are gradients."""

    shard: int
    row: int
    dtype: torch.dtype


class ExchangeMemory:
    """Two arenas, kept from plan to plan."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._reached = Arena(transport.allocate)
        self._own = Arena()
        # Those of the current plan; the same list always, because connections outlive the model.
        self.exchanges: list[Exchange] = []

    def clear(self, shapes: Iterable[tuple[ExchangeShape, torch.Tensor]]) -> None:
        """Free everything, and make room for exchanges of these shapes with regions in these buffers."""
        self.exchanges.clear()
        workers = self._transport.num_workers
        reached: dict[Kind, list[int]] = {}
        own: dict[Kind, list[int]] = {}
        for shape, flat in shapes:
            kind = (shape.dtype, flat.device)
            reached.setdefault(kind, []).append(workers * shape.row)
            own.setdefault(kind, []).append(self._transport.num_stage_rows * shape.row)
            if self._transport.needs_landing:
                reached.setdefault((flat.dtype, flat.device), []).append(workers * shape.shard)
        self._reached.clear(reached)
        self._own.clear(own)

    def make(self, index: int, shape: ExchangeShape, region: torch.Tensor) -> Exchange:
        """Not zeroed: every element that matters is written before it is sent."""
        workers = self._transport.num_workers
        kind = (shape.dtype, region.device)
        rows = self._transport.num_stage_rows
        send = self._reached.take(kind, workers * shape.row).view(workers, shape.row)
        landing = None
        if self._transport.needs_landing:
            landing = self._reached.take((region.dtype, region.device), workers * shape.shard)
        exchange = Exchange(
            index=index,
            shard=shape.shard,
            send=send,
            stage=self._own.take(kind, rows * shape.row).view(rows, shape.row),
            region=region,
            reduce_works=[],
            send_works=[],
            gather_works=[],
            landing=landing,
        )
        self.exchanges.append(exchange)
        return exchange
