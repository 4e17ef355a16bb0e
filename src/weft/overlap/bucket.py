"""One bucket: its memory, its phase, and the gradients it collects."""

from __future__ import annotations

import enum

import torch

from weft.overlap.arena import Arena
from weft.overlap.device import CPU, Device
from weft.overlap.layout import BucketPlan, Piece
from weft.overlap.transport.base import Exchange

# Elements: 16 bytes in whatever dtype gradients travel in.
_ROW_ALIGN = 16


class Phase(enum.Enum):
    """Where a bucket is in its step; each comment says what moves it there."""

    IDLE = "idle"  # nothing under way: before the first gradient, or after the gather was waited for
    COLLECTING = "collecting"  # a backward has begun; the others may send
    REDUCING = "reducing"  # every parameter in it has its gradient (or the backward has ended)
    REDUCED = "reduced"  # our shard of the sum is complete
    UPDATED = "updated"  # the optimizer has run on our shard
    GATHERING = "gathering"  # our shard is on its way, the others' may be half here: not to be read


def row_length(plan: BucketPlan) -> int:
    """Elements that go to one worker: its shard, who used which parameter, a vote and the stamp.

    NCCL is fastest with rows that start at multiples of 16 bytes; padding lies in front of the vote.
    """
    length = plan.shard + len(plan.parameters) + 2
    return -(-length // _ROW_ALIGN) * _ROW_ALIGN


def buffer_lengths(plan: BucketPlan, num_workers: int, needs_stage: bool) -> list[int]:
    """What a bucket takes out of the arena."""
    row = row_length(plan)
    return [num_workers * row, *([row] * (num_workers - 1) if needs_stage else [])]


class Bucket:
    """The runtime of a :class:`~weft.overlap.layout.BucketPlan` on this worker."""

    def __init__(
        self,
        plan: BucketPlan,
        flat: torch.Tensor,
        rank: int,
        num_workers: int,
        comm_dtype: torch.dtype,
        needs_stage: bool,
        arena: Arena,
    ) -> None:
        self.plan = plan
        self.phase = Phase.IDLE
        self.own = plan.owned_by(rank)
        self.arrived: set[int] = set()
        # Parameters whose gradient somebody has set to None since.
        self.skipped: set[int] = set()
        self.shard = plan.shard
        row, kind = row_length(plan), (comm_dtype, flat.device)
        # Not zeroed: every element that counts is written before it is sent.
        send = arena.take(kind, num_workers * row).view(num_workers, row)
        stage = []
        if needs_stage:
            stage = [send[w] if w == rank else arena.take(kind, row) for w in range(num_workers)]
        self.exchange = Exchange(
            index=plan.index,
            shard=plan.shard,
            send=send,
            stage=stage,
            region=flat[plan.start : plan.stop],
            reduce_works=[],
            send_works=[],
            gather_works=[],
        )
        self._targets: dict[int, list[tuple[Piece, torch.Tensor]]] = {i: [] for i in plan.parameters}
        for piece in plan.pieces:
            run = self.exchange.send[piece.owner, piece.offset : piece.offset + piece.length]
            self._targets[piece.parameter].append((piece, run))
        self._own_start = plan.start + rank * plan.shard
        self._flat = flat

    def own_parameter_run(self, piece: Piece) -> torch.Tensor:
        """The elements of a parameter that this worker updates, in their place."""
        start = self._own_start + piece.offset
        return self._flat[start : start + piece.length]

    def own_gradient_run(self, piece: Piece) -> torch.Tensor:
        """The reduced gradient of those elements."""
        reduced = self.exchange.reduced
        assert reduced is not None
        return reduced[piece.offset : piece.offset + piece.length]

    @property
    def carry(self) -> torch.Tensor | None:
        return self.exchange.carry

    @carry.setter
    def carry(self, carry: torch.Tensor | None) -> None:
        self.exchange.carry = carry

    @property
    def complete(self) -> bool:
        return len(self.arrived) == len(self.plan.parameters)

    def collect(self, parameter: int, gradient: torch.Tensor, share: float) -> None:
        """Copy a gradient (flat, in memory order) in, times this worker's share of the average, as DDP does."""
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
        """What this worker, or any other, had a gradient for in the last round, as far as is known here."""
        others = self.used() if self.exchange.reduced is not None else []
        return self.arrived.union(n for n, used in zip(self.plan.parameters, others, strict=False) if used)

    def collect_zeros(self, parameters: set[int]) -> None:
        """Gradients of zero for these parameters."""
        self.exchange.send.zero_()
        self.arrived.update(parameters)

    def close(self, vote: float) -> None:
        """No more gradients come: zeros for those missing, and a note of who was used and how we vote."""
        tail = self.exchange.send[:, self.shard : -1]
        tail.fill_(1.0)
        tail[:, -1] = vote
        if not self.complete:
            for position, parameter in enumerate(self.plan.parameters):
                if parameter not in self.arrived:
                    tail[:, position] = 0.0
                    for _, run in self._targets[parameter]:
                        run.zero_()

    def used(self, device: Device = CPU) -> list[bool]:
        """For each parameter of the plan: whether any worker had a gradient for it in this step.

        What this worker has used itself needs no look at the numbers, and so no wait for a GPU.
        """
        if self.complete:
            return [parameter not in self.skipped for parameter in self.plan.parameters]
        counts = device.read_later(self.counts()).values()
        return [count > 0 and p not in self.skipped for p, count in zip(self.plan.parameters, counts, strict=True)]

    def counts(self) -> torch.Tensor:
        """How many workers had a gradient, for each parameter of the plan."""
        reduced = self.exchange.reduced
        assert reduced is not None
        return reduced[self.shard : self.shard + len(self.plan.parameters)]

    def mark_used(self, parameter: int) -> None:
        """A gradient was put there that no backward made."""
        if self.exchange.reduced is not None:
            self.counts()[self.plan.parameters.index(parameter)] = 1.0

    def votes(self) -> int:
        """The sum of all workers' votes when they closed this bucket; the same on all of them."""
        reduced = self.exchange.reduced
        assert reduced is not None
        return round(float(reduced[-2].item()))

    def add_carry(self) -> None:
        """Gradients of an earlier backward that were not zeroed count on top, unless the carrier has added them."""
        if self.carry is not None:
            reduced = self.exchange.reduced
            assert reduced is not None
            reduced[:-2].add_(self.carry[:-2])
            self.carry = None

    def keep_as_carry(self, parameters: set[int]) -> None:
        """Keep the reduced gradients of ``parameters``; the memory is about to be used again."""
        reduced = self.exchange.reduced
        assert reduced is not None
        if not parameters.intersection(self.plan.parameters):
            self.carry = None
            return
        self.carry = reduced.clone()
        for position, parameter in enumerate(self.plan.parameters):
            if parameter not in parameters:
                self.carry[self.shard + position] = 0.0
                for piece in self.own:
                    if piece.parameter == parameter:
                        self.carry[piece.offset : piece.offset + piece.length] = 0.0
