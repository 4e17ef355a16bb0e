"""The memory of exchanges: what the transport has to reach comes from the transport, the rest is this worker's own."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from weft.overlap.arena import Arena, Kind
from weft.overlap.transport.base import Exchange, Transport


@dataclass(frozen=True, slots=True)
class ExchangeShape:
    """``row`` elements of ``dtype`` go to each worker, the first ``shard`` of them gradients."""

    shard: int
    row: int
    dtype: torch.dtype


class ExchangeMemory:
    """Kept from plan to plan."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._reached = Arena(transport.allocate)
        self._own = Arena()

    def clear(self, shapes: Iterable[tuple[ExchangeShape, torch.Tensor]]) -> None:
        """All memory is free again; there will be room for exchanges of these shapes, whose regions lie in these."""
        workers = self._transport.num_workers
        reached: dict[Kind, list[int]] = {}
        own: dict[Kind, list[int]] = {}
        for shape, flat in shapes:
            kind = (shape.dtype, flat.device)
            reached.setdefault(kind, []).append(workers * shape.row)
            own.setdefault(kind, []).extend([shape.row] * self._transport.num_stage_rows)
            if self._transport.needs_landing:
                reached.setdefault((flat.dtype, flat.device), []).append(workers * shape.shard)
        self._reached.clear(reached)
        self._own.clear(own)

    def make(self, index: int, shape: ExchangeShape, region: torch.Tensor) -> Exchange:
        """Not zeroed: every element that counts is written before it is sent."""
        workers = self._transport.num_workers
        kind = (shape.dtype, region.device)
        send = self._reached.take(kind, workers * shape.row).view(workers, shape.row)
        landing = None
        if self._transport.needs_landing:
            landing = self._reached.take((region.dtype, region.device), workers * shape.shard)
        return Exchange(
            index=index,
            shard=shape.shard,
            send=send,
            stage=[self._own.take(kind, shape.row) for _ in range(self._transport.num_stage_rows)],
            region=region,
            reduce_works=[],
            send_works=[],
            gather_works=[],
            landing=landing,
        )
