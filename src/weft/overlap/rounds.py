"""Backward: gradients go into buckets, complete buckets are launched, in the same order on every worker.

[Note: rounds]  A round is one backward whose gradients are reduced.  Normally a step has one.  When step()
is not called after it (a step skipped by GradScaler) its results are dropped; when gradients were not zeroed
they are carried into the next round's.  The round's number goes into message tags.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import torch

from weft.core.turns import TURNS
from weft.errors import OverlapError
from weft.overlap.arena import Arena, Kind
from weft.overlap.bucket import Bucket, Phase, buffer_lengths
from weft.overlap.flat import FlatMemory, flat_view
from weft.overlap.layout import make_buckets
from weft.overlap.timing import StepClock
from weft.overlap.transport.base import Transport


class Rounds(ABC):
    """Collects and reduces; what happens to a reduced bucket is for the two kinds of schedule below."""

    def __init__(
        self,
        names: Sequence[str],
        parameters: Sequence[torch.nn.Parameter],
        optimizer: torch.optim.Optimizer,
        transport: Transport,
        clock: StepClock,
        comm_dtype: torch.dtype | None,
        overlapped: bool,
    ) -> None:
        self.names = names
        self.parameters = parameters
        self.optimizer = optimizer
        self.transport = transport
        self.clock = clock
        self.overlapped = overlapped
        self.sync = True
        # What this worker's gradient counts for in the average; uneven batches set it for a step.
        self.share = 1.0 / transport.num_workers
        # Carried to all workers with the gradients; `num_votes` is of the last round, and the same everywhere.
        self.vote = False
        self.num_votes = 0
        self.num_steps = 0
        # Called once per step when the model's buffers have their values; the handle puts it in.
        self.send_buffers: Callable[[], None] = lambda: None
        # Which parameters' gradients came, in order; read by the tuner after the first round.
        self.ready_order: list[int] = []
        self.memory: FlatMemory
        self.cuts: tuple[tuple[int, ...], ...] = ()
        self.buckets: list[Bucket] = []
        self._comm_dtype = comm_dtype
        self._arena = Arena()
        self._buckets_of: list[list[Bucket]] = []
        self._round = 0
        self._open = False
        self._armed = False
        # Whether a round has ended since the last step; the phases cannot tell when eager has gathered everything.
        self._had_round = False
        self._next_launch = 0
        self._end_queued = False

    # ---- the plan

    def lay_out(self, memory: FlatMemory, cuts: Sequence[Sequence[int]]) -> None:
        """Take up a plan.  Nothing may be under way."""
        self.memory = memory
        self.cuts = tuple(tuple(lane_cuts) for lane_cuts in cuts)
        ready = {number: k for k, number in enumerate(memory.order)}
        plans = make_buckets(memory.lanes, self.cuts, self.transport.num_workers, ready)
        buffers = self._exchange_buffers()
        dtypes = [self._comm_dtype or buffer.dtype for buffer in buffers]
        num_workers, needs_stage = self.transport.num_workers, self.transport.needs_stage
        sizes: dict[Kind, list[int]] = {}
        for plan in plans:
            kind = (dtypes[plan.lane], buffers[plan.lane].device)
            sizes.setdefault(kind, []).extend(buffer_lengths(plan, num_workers, needs_stage))
        self._arena.clear(sizes)
        self.buckets = [
            Bucket(
                plan,
                buffers[plan.lane],
                self.transport.rank,
                num_workers,
                dtypes[plan.lane],
                needs_stage,
                self._arena,
            )
            for plan in plans
        ]
        self._buckets_of = [[] for _ in self.parameters]
        for bucket in self.buckets:
            for number in bucket.plan.parameters:
                self._buckets_of[number].append(bucket)

    def forget_plan(self) -> None:
        """Let go of the buckets; another plan follows in their memory."""
        self.buckets = []
        self._buckets_of = []

    def _exchange_buffers(self) -> list[torch.Tensor]:
        """The flat memory that gathers fill: the parameters, or a copy of the gradients."""
        return self.memory.buffers

    # ---- a round

    def forward_begins(self) -> None:
        """A training forward of the whole model: a good moment to let the others send early."""
        if self._open and torch._C._current_graph_task_id() == -1:
            self.abandon()
        idle = all(b.phase in (Phase.IDLE, Phase.GATHERING) for b in self.buckets)
        if self.sync and not self._armed and idle and self._may_overwrite_gradients():
            self._arm()

    def gradient_ready(self, number: int) -> None:
        """A parameter's gradient is complete: called by autograd."""
        TURNS.border()
        if not self.sync:
            return
        gradient = self._take_gradient(number)
        if gradient.layout is not torch.strided:
            raise OverlapError(
                f"the gradient of {self.names[number]} is {gradient.layout}, weft.overlap handles dense gradients "
                "only: set sparse=False in the embedding, or leave this model to DistributedDataParallel"
            )
        if not self._open:
            self._begin()
        if not self._end_queued:
            self._end_queued = True
            torch.autograd.Variable._execution_engine.queue_callback(self._backward_ended)
        self.clock.gradient_ready(number)
        if any(bucket.phase is not Phase.COLLECTING for bucket in self._buckets_of[number]):
            raise OverlapError(
                f"the gradient of {self.names[number]} came twice in one backward after its bucket had left: "
                "reentrant checkpointing does that; use torch.utils.checkpoint(..., use_reentrant=False)"
            )
        line = flat_view(gradient, self.parameters[number])
        for bucket in self._buckets_of[number]:
            bucket.collect(number, line, self.share)
        self.ready_order.append(number)
        if self.overlapped:
            self._launch_complete()
            self._make_progress()

    def _begin(self) -> None:
        self._open = True
        self._next_launch = 0
        self.ready_order = []
        self._prepare_buckets()
        if not self._armed:
            self._arm()
        self._settle_sends()
        for bucket in self.buckets:
            bucket.arrived.clear()
            bucket.phase = Phase.COLLECTING

    def _settle_sends(self) -> None:
        if any(bucket.exchange.send_works for bucket in self.buckets):
            with TURNS.yielded():
                for bucket in self.buckets:
                    self.transport.settle_sends(bucket.exchange)

    def _arm(self) -> None:
        for bucket in self.buckets:
            self.transport.open_reduce(bucket.exchange, self._round)
        self._armed = True

    def _launch_complete(self) -> None:
        while self._next_launch < len(self.buckets) and self.buckets[self._next_launch].complete:
            self._launch_next()

    def _launch_next(self) -> None:
        bucket = self.buckets[self._next_launch]
        bucket.close(self.vote)
        self.clock.launched("reduce-scatter", bucket)
        self.transport.launch_reduce(bucket.exchange, self._round)
        bucket.phase = Phase.REDUCING
        self._next_launch += 1
        self._after_launch(bucket)

    def _backward_ended(self) -> None:
        self._end_queued = False
        if self._open:
            self._close_round()

    def _close_round(self) -> None:
        """Launch what is left, with zeros for parameters this worker did not use."""
        for number, buckets in enumerate(self._buckets_of):
            if buckets and number not in buckets[0].arrived:
                self._collect_left_over(number, buckets)
        while self._next_launch < len(self.buckets):
            self._launch_next()
        self._open = False
        self._armed = False
        self._had_round = True
        self._end_queued = False
        self._round += 1
        self.clock.backward_ended()
        self._round_closed()

    def _collect_left_over(self, number: int, buckets: list[Bucket]) -> None:
        """A gradient from a pass inside no_sync() counts even if the last pass did not use the parameter."""
        gradient = self._left_over_gradient(number)
        if gradient is not None:
            line = flat_view(gradient, self.parameters[number])
            for bucket in buckets:
                bucket.collect(number, line, self.share)

    def drain(self) -> None:
        """Nothing is under way on return, on any worker.  Collective; between steps."""
        if self._open:
            self.abandon()
        elif self._armed:  # the others may be sending already: let them, and keep nothing of it
            self._begin()
            self.abandon()
        self._settle_sends()

    def abandon(self) -> None:
        """A backward was left by an exception: end its round on all workers, keep nothing of it."""
        self._close_round()
        self._drop_round()

    # ---- what the two schedules add

    @abstractmethod
    def _take_gradient(self, number: int) -> torch.Tensor:
        """The local gradient of a parameter, out of ``p.grad``."""

    @abstractmethod
    def _left_over_gradient(self, number: int) -> torch.Tensor | None:
        """The local gradient of a parameter that this round has not touched, if it has one."""

    @abstractmethod
    def _prepare_buckets(self) -> None:
        """Before a round: everything under way is waited for, what must be kept is kept."""

    def _may_overwrite_gradients(self) -> bool:
        """Whether nobody needs the last round's gradients any more."""
        return True

    def _make_progress(self) -> None:
        """After a gradient: use the moment."""

    def _after_launch(self, bucket: Bucket) -> None:
        """After a bucket has left."""

    def _round_closed(self) -> None:
        """After the last bucket has left."""

    @abstractmethod
    def _drop_round(self) -> None:
        """Wait for what the round has launched and forget it."""

    # ---- optimizer hooks

    @abstractmethod
    def before_step(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Before the optimizer's own step; may replace its arguments."""

    def after_step(self) -> None:
        """After the optimizer's own step."""

    def before_compute(self) -> None:
        """A forward is about to ask for the device: wait now for what it would wait for then."""

    def flush(self) -> None:
        """Nothing is under way on return; every parameter holds its newest value."""
