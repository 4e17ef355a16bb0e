"""One bucket: its memory, its phase, and the gradients it collects."""

from __future__ import annotations

import enum

import torch

from weft.overlap.device import CPU, Device
from weft.overlap.exchange_memory import ExchangeShape
from weft.overlap.layout import BucketPlan, Piece
from weft.overlap.transport.base import NUM_SIGNALS, Exchange

# In elements: at least 16 bytes in any dtype.
_ROW_ALIGN = 16


class Phase(enum.Enum):
    """Where a bucket is in its step; each comment says when it is entered."""

    IDLE = "idle"  # nothing in flight: before the first gradient, or after waiting for the gather
    COLLECTING = "collecting"  # a backward has begun; other workers may send
    REDUCING = "reducing"  # every parameter in it has its gradient (or the backward has ended)
    REDUCED = "reduced"  # our shard of the sum is complete
    UPDATED = "updated"  # the optimizer has run on our shard
    GATHERING = "gathering"  # shards are in flight: must not be read


def exchange_shape(plan: BucketPlan, dtype: torch.dtype) -> ExchangeShape:
    """A row is a worker's shard, a use count per parameter, and the signals.

    NCCL is fastest with rows that start at multiples of 16 bytes; padding goes before the signals.
    """
    length = plan.shard + len(plan.parameters) + NUM_SIGNALS
    return ExchangeShape(plan.shard, -(-length // _ROW_ALIGN) * _ROW_ALIGN, dtype)


class Bucket:
    """The runtime of a :class:`~weft.overlap.layout.BucketPlan` on this worker."""

    def __init__(self, plan: BucketPlan, flat: torch.Tensor, rank: int, exchange: Exchange) -> None:
        self.plan = plan
        self.phase = Phase.IDLE
        self.own = plan.owned_by(rank)
        self.arrived: set[int] = set()
        # Parameters whose gradient was set to None after backward.
        self.skipped: set[int] = set()
        self.shard = plan.shard
        self.exchange = exchange
        self._targets: dict[int, list[tuple[Piece, torch.Tensor]]] = {i: [] for i in plan.parameters}
        for piece in plan.pieces:
            run = self.exchange.send[piece.owner, piece.offset : piece.offset + piece.length]
            self._targets[piece.parameter].append((piece, run))
        self._own_start = plan.start + rank * plan.shard
        self._flat = flat

    def own_parameter_run(self, piece: Piece) -> torch.Tensor:
        """The elements of a parameter that this worker updates, in place."""
        start = self._own_start + piece.offset
        return self._flat[start : start + piece.length]

    def own_gradient_run(self, piece: Piece) -> torch.Tensor:
        """The reduced gradient of those elements."""
        return self.reduced[piece.offset : piece.offset + piece.length]

    @property
    def reduced(self) -> torch.Tensor:
        """This worker's row of the sums, once the reduction has finished."""
        assert self.exchange.reduced is not None
        return self.exchange.reduced

    @property
    def complete(self) -> bool:
        return len(self.arrived) == len(self.plan.parameters)

    def collect(self, parameter: int, gradient: torch.Tensor, share: float) -> None:
        """Copy in a gradient (flat, in memory order), times this worker's share of the average, as DDP does."""
        again = parameter in self.arrived
        self.arrived.add(parameter)
        for piece, run in self._targets[parameter]:
            part = gradient[piece.start : piece.start + piece.length]
            if again:  # a second backward pass inside one step: reentrant checkpointing
                run.add_(part, alpha=share)
            elif run.dtype == part.dtype:
                torch.mul(part, share, out=run)
            else:
                run.copy_(part * share)

    def used_lately(self) -> set[int]:
        """Parameters for which any worker had a gradient in the last round, as far as known here."""
        others = self.used() if self.exchange.reduced is not None else []
        return self.arrived.union(n for n, used in zip(self.plan.parameters, others, strict=False) if used)

    def collect_zeros(self, parameters: set[int]) -> None:
        """Send zeros, and count these parameters as used."""
        self.exchange.send.zero_()
        self.arrived.update(parameters)

    def close(self, vote: bool, objects: bool) -> None:
        """After the last gradient: fill in zeros for missing ones, the use counts, and our signals."""
        tail = self.exchange.send[:, self.shard : -1]
        tail.fill_(1.0)
        tail[:, -1] = float(vote)
        tail[:, -2] = float(objects)
        if not self.complete:
            for position, parameter in enumerate(self.plan.parameters):
                if parameter not in self.arrived:
                    tail[:, position] = 0.0
                    for _, run in self._targets[parameter]:
                        run.zero_()

    def used(self, device: Device = CPU) -> list[bool]:
        """For each parameter of the plan: whether any worker had a gradient for it in this step.

        If this worker used all of them, the counts need not be read, so the host does not wait for a GPU.
        """
        if self.complete:
            return [parameter not in self.skipped for parameter in self.plan.parameters]
        counts = device.read_later(self.counts())()
        return [count > 0 and p not in self.skipped for p, count in zip(self.plan.parameters, counts, strict=True)]

    def counts(self) -> torch.Tensor:
        """How many workers had a gradient, for each parameter of the plan."""
        return self.reduced[self.shard : self.shard + len(self.plan.parameters)]

    def mark_used(self, parameter: int) -> None:
        """A gradient was assigned by hand."""
        if self.exchange.reduced is not None:
            self.counts()[self.plan.parameters.index(parameter)] = 1.0

    def signals(self) -> tuple[int, int]:
        """How many workers objected and voted when they closed this bucket; the same on all of them."""
        objections, votes = self.reduced[-3:-1].tolist()
        return round(objections), round(votes)

    def add_carry(self) -> None:
        """Add gradients of an earlier backward that were not zeroed, unless the transport already has."""
        if self.exchange.carry is not None:
            self.reduced[:-NUM_SIGNALS].add_(self.exchange.carry[:-NUM_SIGNALS])
            self.exchange.carry = None

    def keep_as_carry(self, parameters: set[int]) -> None:
        """Keep the reduced gradients of ``parameters``, because the memory is about to be reused."""
        self.exchange.carry = None
        if parameters.isdisjoint(self.plan.parameters):
            return
        carry = self.exchange.carry = self.reduced.clone()
        for position, parameter in enumerate(self.plan.parameters):
            if parameter not in parameters:
                carry[self.shard + position] = 0.0
                for piece in self.own:
                    if piece.parameter == parameter:
                        carry[piece.offset : piece.offset + piece.length] = 0.0
