"""One bucket: its memory, its phase, and the gradients it collects."""

from __future__ import annotations

import enum

import torch

from weft.overlap.arena import Arena
from weft.overlap.layout import BucketPlan, Piece
from weft.overlap.transport.base import Exchange


class Phase(enum.Enum):
    """Where a bucket is in its step; each comment says what moves it there."""

    IDLE = "idle"  # nothing under way: before the first gradient, or after the gather was waited for
    COLLECTING = "collecting"  # a backward has begun; the others may send
    REDUCING = "reducing"  # every parameter in it has its gradient (or the backward has ended)
    REDUCED = "reduced"  # our shard of the sum is complete
    UPDATED = "updated"  # the optimizer has run on our shard
    GATHERING = "gathering"  # our shard is on its way, the others' may be half here: not to be read


def row_length(plan: BucketPlan) -> int:
    """Elements that go to one worker: its shard, who used which parameter, a vote and the stamp."""
    return plan.shard + len(plan.parameters) + 2


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
        self.carry: torch.Tensor | None = None
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

    def close(self, vote: bool) -> None:
        """No more gradients come: zeros for those missing, and a note of who was used and how we vote."""
        tail = self.exchange.send[:, self.shard : -1]
        tail.fill_(1.0)
        tail[:, -1] = float(vote)
        if not self.complete:
            for position, parameter in enumerate(self.plan.parameters):
                if parameter not in self.arrived:
                    tail[:, position] = 0.0
                    for _, run in self._targets[parameter]:
                        run.zero_()

    def used(self) -> list[bool]:
        """For each parameter of the plan: whether any worker had a gradient for it in this step.

        What this worker has used itself needs no look at the numbers, and so no wait for a GPU.
        """
        if self.complete:
            return [True] * len(self.plan.parameters)
        reduced = self.exchange.reduced
        assert reduced is not None
        counts = reduced[self.shard : self.shard + len(self.plan.parameters)]
        return [count > 0 for count in counts.tolist()]

    def votes(self) -> int:
        """How many workers voted yes when they closed this bucket; the same on all of them."""
        reduced = self.exchange.reduced
        assert reduced is not None
        return round(float(reduced[-2].item()))

    def add_carry(self) -> None:
        """Gradients of an earlier backward that were not zeroed count on top."""
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
