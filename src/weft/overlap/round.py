"""One round of a schedule: gradients go into buckets, and complete buckets are launched in the same order everywhere.

[Note: rounds]  A round is one backward whose gradients are reduced.  Normally a step has one.  If step() is not called
after it (GradScaler skipped the step), its results are dropped; gradients that were not zeroed are carried into the
next round.  The round's number goes into message tags.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import torch

from weft.errors import OverlapError, WeftError
from weft.overlap.bucket import Bucket, Phase, exchange_shape
from weft.overlap.exchange_memory import ExchangeMemory
from weft.overlap.flat import FlatMemory, flat_view
from weft.overlap.graphs import Captures
from weft.overlap.layout import BucketPlan, make_buckets
from weft.overlap.round_streams import RoundStreams
from weft.overlap.timing import StepClock
from weft.overlap.transport.base import Transport
from weft.process.turns import TURNS


class Stage(enum.Enum):
    """Where a schedule is between two steps; each comment says when it is entered."""

    IDLE = "idle"  # a step has used the gradients, or they were dropped
    ARMED = "armed"  # a forward has begun: other workers may send us their next gradients
    COLLECTING = "collecting"  # the first gradient is ready, or step() was called without a backward
    ENDED = "ended"  # every bucket has been launched; the gradients wait for step()
    REARMED = "rearmed"  # another forward has begun before step()


LEGAL: Final[Mapping[Stage, frozenset[Stage]]] = {
    Stage.IDLE: frozenset({Stage.ARMED, Stage.COLLECTING}),
    Stage.ARMED: frozenset({Stage.COLLECTING}),
    Stage.COLLECTING: frozenset({Stage.ENDED}),
    Stage.ENDED: frozenset({Stage.IDLE, Stage.REARMED, Stage.COLLECTING}),
    Stage.REARMED: frozenset({Stage.ARMED, Stage.COLLECTING}),
}


class Round:
    """Collects and reduces gradients.  Its schedule decides when, and what happens to a reduced bucket."""

    def __init__(
        self,
        names: Sequence[str],
        parameters: Sequence[torch.nn.Parameter],
        transport: Transport,
        clock: StepClock,
        comm_dtype: torch.dtype | None,
        objects: Callable[[], bool],
    ) -> None:
        """``objects`` is called once per round: whether this worker's buffers have a new layout (buffers.py)."""
        self.names = names
        self.parameters = parameters
        self.transport = transport
        self.clock = clock
        self.device = transport.device
        self.captures = Captures(self.device)
        self.streams = RoundStreams(self.device) if self.device.has_streams else None
        self.stage = Stage.IDLE
        self.number = 0
        # Backward passes inside no_sync() only accumulate.
        self.sync = True
        # The weight of this worker's gradient in the average; set per step for uneven batches.
        self.share = 1.0 / transport.num_workers
        # Sent to all workers with the gradients; `num_votes` is that of the last round, the same on all workers.
        self.vote = False
        self.num_votes = 0
        # Whether any worker's buffers have a new layout; the same on all workers.
        self.objected = False
        # The order in which gradients became ready; read by the tuner after the first round.
        self.ready_order: list[int] = []
        # Parameters with gradients from no_sync() that no round has included yet.
        self.unsynchronized: set[int] = set()
        self.memory: FlatMemory
        self.cuts: tuple[tuple[int, ...], ...] = ()
        self.buckets: list[Bucket] = []
        self.buckets_of: list[list[Bucket]] = []
        self.num_launched = 0
        self._comm_dtype = comm_dtype
        self._objects = objects
        self.memory_of_exchanges = ExchangeMemory(transport)
        self._addresses: list[int] = []

    # ---- the plan

    def take_up(self, memory: FlatMemory, cuts: Sequence[Sequence[int]]) -> Sequence[BucketPlan]:
        """Lay out the memory for a plan.  Nothing may be in flight on any worker; :meth:`make_buckets` follows."""
        self.memory = memory
        self.cuts = tuple(tuple(lane_cuts) for lane_cuts in cuts)
        ready = {number: k for k, number in enumerate(memory.order)}
        return make_buckets(*memory.take_up(self.cuts), self.transport.num_workers, ready)

    def make_buckets(self, plans: Sequence[BucketPlan], buffers: Sequence[torch.Tensor]) -> None:
        """``buffers`` are filled by gathers, one per lane."""
        shapes = [exchange_shape(plan, self._comm_dtype or buffers[plan.lane].dtype) for plan in plans]
        memory = self.memory_of_exchanges
        memory.clear((shape, buffers[plan.lane]) for shape, plan in zip(shapes, plans, strict=True))
        self.buckets = []
        for plan, shape in zip(plans, shapes, strict=True):
            flat = buffers[plan.lane]
            exchange = memory.make(plan.index, shape, flat[plan.start : plan.stop])
            self.buckets.append(Bucket(plan, flat, self.transport.rank, exchange))
        self._addresses = [parameter.data_ptr() for parameter in self.parameters]
        self.buckets_of = [[] for _ in self.parameters]
        for bucket in self.buckets:
            for number in bucket.plan.parameters:
                self.buckets_of[number].append(bucket)

    def check_memory(self) -> None:
        """Parameters must still be where gathers write them."""
        with torch._C.DisableTorchFunctionSubclass():  # reads only addresses, so it need not wait
            addresses = [parameter.data_ptr() for parameter in self.parameters]
        for number, address in enumerate(addresses):
            if address != self._addresses[number]:
                raise OverlapError(
                    f"the memory of {self.names[number]} was replaced after weft.overlap was called (model.to()? "
                    "resize_token_embeddings()? p.data = ...?): call detach() on every worker before such a change and "
                    "weft.overlap after it"
                )

    def forget_plan(self) -> None:
        """Free the buckets; another plan will reuse their memory."""
        self.buckets = []
        self.buckets_of = []
        self.memory_of_exchanges.exchanges.clear()

    # ---- the stages

    @property
    def is_open(self) -> bool:
        return self.stage is Stage.COLLECTING

    @property
    def awaits_step(self) -> bool:
        """Whether there are gradients that no step has used."""
        return self.stage in (Stage.COLLECTING, Stage.ENDED, Stage.REARMED)

    @property
    def is_armed(self) -> bool:
        """Whether other workers may already be sending, although nothing has been collected here."""
        return self.stage in (Stage.ARMED, Stage.REARMED)

    def _move_to(self, stage: Stage) -> None:
        if stage not in LEGAL[self.stage]:
            raise WeftError(f"a round cannot change from {self.stage.value} to {stage.value}: please report this")
        self.stage = stage

    def arm(self) -> None:
        """Let other workers send early, unless they already may or something is still in flight here."""
        idle = all(bucket.phase in (Phase.IDLE, Phase.GATHERING) for bucket in self.buckets)
        if self.sync and idle and self.stage in (Stage.IDLE, Stage.ENDED):
            self._move_to(Stage.ARMED if self.stage is Stage.IDLE else Stage.REARMED)
            self.post_receives()

    def open(self) -> bool:
        """Begin to collect; returns whether other workers may already be sending.  :meth:`start` follows."""
        was_armed = self.is_armed
        self._move_to(Stage.COLLECTING)
        self.num_launched = 0
        self.ready_order = []
        if self.streams:
            self.streams.await_step()
        return was_armed

    def post_receives(self) -> None:
        for bucket in self.buckets:
            self.transport.open_reduce(bucket.exchange, self.number)

    def start(self) -> None:
        """Make buckets accept gradients; nothing may be in flight from their memory."""
        for bucket in self.buckets:
            bucket.arrived.clear()
            bucket.skipped.clear()
            bucket.phase = Phase.COLLECTING
        if self.streams:
            self.streams.begin()

    def end(self) -> None:
        """Every bucket has been launched."""
        self._move_to(Stage.ENDED)
        self.number += 1
        self.clock.backward_ended()

    def gradients_used(self) -> None:
        """A step has used the gradients, or they were dropped."""
        if self.stage is Stage.ENDED:
            self._move_to(Stage.IDLE)
        elif self.stage is Stage.REARMED:
            self._move_to(Stage.ARMED)

    # ---- gradients

    def accepts(self, number: int) -> bool:
        """Whether to average a gradient that autograd has just completed."""
        TURNS.border()
        if not self.sync:
            self.unsynchronized.add(number)
            return False
        self.captures.refuse("backward()")
        return True

    def checked(self, number: int, gradient: torch.Tensor | None) -> torch.Tensor:
        if gradient is None:
            raise OverlapError(
                f"the gradient of {self.names[number]} was removed during backward: a hook of the model sets .grad; "
                "make hooks return a new gradient instead"
            )
        if gradient.layout is not torch.strided:
            raise OverlapError(
                f"the gradient of {self.names[number]} is {gradient.layout}, but weft.overlap supports only dense "
                "gradients: set sparse=False in the embedding, or use DistributedDataParallel for this model"
            )
        return gradient

    def collect(self, number: int, gradient: torch.Tensor) -> None:
        self.clock.gradient_ready(number)
        buckets = self.buckets_of[number]
        if any(bucket.phase is not Phase.COLLECTING for bucket in buckets):
            raise OverlapError(
                f"the gradient of {self.names[number]} was computed again in one backward after its bucket had been "
                "sent: reentrant checkpointing does that; use torch.utils.checkpoint(..., use_reentrant=False)"
            )
        if self.streams:
            self.streams.enter(buckets)
        self._copy_in(number, gradient)
        self.ready_order.append(number)

    def collect_left_over(self, gradient_of: Callable[[int], torch.Tensor | None]) -> None:
        """Include gradients from no_sync() of parameters that the last pass did not use."""
        if self.streams:
            self.streams.enter()
        for number, buckets in enumerate(self.buckets_of):
            gradient = gradient_of(number) if buckets and number not in buckets[0].arrived else None
            if gradient is None:
                continue
            if self.streams:
                self.streams.enter(buckets)
                self.device.keep(gradient)  # backward may have written it on another stream, and it is freed soon
            self._copy_in(number, gradient)
        self.unsynchronized.clear()

    def collect_zeros(self, used: Sequence[set[int]]) -> None:
        """For a worker without gradients of its own: zeros, with these parameters of each bucket counted as used."""
        for bucket, parameters in zip(self.buckets, used, strict=True):
            bucket.collect_zeros(parameters)

    def _copy_in(self, number: int, gradient: torch.Tensor) -> None:
        line = flat_view(gradient, self.parameters[number])
        for bucket in self.buckets_of[number]:
            bucket.collect(number, line, self.share)

    # ---- buckets

    @property
    def next_is_complete(self) -> bool:
        return self.num_launched < len(self.buckets) and self.buckets[self.num_launched].complete

    @property
    def all_launched(self) -> bool:
        return self.num_launched == len(self.buckets)

    def launch_next(self) -> Bucket:
        bucket = self.buckets[self.num_launched]
        if self.streams:
            self.streams.launch(bucket)
        objects = self.num_launched == 0 and self._objects()
        bucket.close(self.vote, objects)
        self.clock.launched("reduce-scatter", bucket)
        self.transport.launch_reduce(bucket.exchange, self.number)
        bucket.phase = Phase.REDUCING
        self.num_launched += 1
        return bucket

    def count_votes(self) -> None:
        """Call it once the first bucket is reduced."""
        if not self.transport.ordered:  # otherwise the host would wait for the device
            objections, self.num_votes = self.buckets[0].signals()
            self.objected = self.objected or objections > 0

    def settle_sends(self) -> None:
        settle_sends(self.transport, self.buckets)


def settle_sends(transport: Transport, buckets: Sequence[Bucket]) -> None:
    """Wait until nothing is being sent from the memory of these buckets."""
    sending = [bucket for bucket in buckets if bucket.exchange.send_works]
    if sending:
        with TURNS.yielded():
            for bucket in sending:
                transport.settle_sends(bucket.exchange)
