"""The schedule for optimizers that are not element-wise (LAMB, Adafactor, Muon, L-BFGS ...).

Reduce-scatter runs under backward as in the sharded schedule; then the *gradients* are gathered, and every worker runs
the user's optimizer on all of them.  When ``backward()`` returns, ``p.grad`` is the averaged gradient, an ordinary
tensor, as with DDP: clipping, GradScaler, and closures need nothing special.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from weft.errors import OverlapError
from weft.overlap.bucket import Phase
from weft.overlap.flat import FlatMemory, carve
from weft.overlap.schedule_interface import Schedule
from weft.perf.schedule import ddp_bound_s
from weft.process.turns import TURNS


class ReplicatedSchedule(Schedule):
    """Reduce under backward, gather the gradients at its end, update everywhere."""

    is_sharded = False

    def lay_out(self, memory: FlatMemory, cuts: Sequence[Sequence[int]]) -> None:
        plans = self.round.take_up(memory, cuts)
        buffers = [torch.zeros_like(buffer) for buffer in memory.buffers]
        slots = {slot.parameter: (k, slot) for k, lane in enumerate(memory.lanes) for slot in lane.slots}
        self._views = []
        for number, parameter in enumerate(self.parameters):
            lane, slot = slots[number]
            self._views.append(carve(buffers[lane], slot.offset, parameter.shape, parameter.stride()))
        self.round.make_buckets(plans, buffers)

    def forget_plan(self) -> None:
        self.round.forget_plan()

    # ---- a pass

    def forward_begins(self) -> None:
        self.round.arm()

    def gradient_ready(self, number: int) -> None:
        if not self.round.accepts(number):
            return
        gradient = self.round.checked(number, self.parameters[number].grad)
        if not self.round.is_open:
            self._begin()
        self._model_round.await_end()
        self.round.collect(number, gradient)
        while self.overlapped and self.round.next_is_complete:
            self.round.launch_next()

    def _begin(self) -> None:
        if not self.round.open():
            self.round.post_receives()
        self.round.settle_sends()
        self.round.start()

    def launch_rest(self) -> None:
        if not self.round.is_open:
            self._begin()
        self.round.collect_left_over(lambda number: self.parameters[number].grad)
        while not self.round.all_launched:
            self.round.launch_next()

    def end_round(self) -> None:
        self.round.end()
        with TURNS.yielded(later=True):
            self._gather_gradients()

    def _gather_gradients(self) -> None:
        rank, tag = self.transport.rank, self.round.number
        for bucket in self.buckets:
            with self.clock.waiting("reduce-scatter", bucket):
                reduced = self.transport.finish_reduce(bucket.exchange)
            region = bucket.exchange.region.view(self.transport.num_workers, bucket.shard)
            region[rank].copy_(reduced[: bucket.shard])
            self.clock.launched("all-gather", bucket)
            self.transport.open_gather(bucket.exchange, tag)
            self.transport.launch_gather(bucket.exchange, tag)
        self.round.count_votes()
        used: set[int] = set()
        # The host has to know before the optimizer runs; if this worker used every parameter, it need not wait.
        for bucket in self.buckets:
            with self.clock.waiting("all-gather", bucket):
                self.transport.finish_gather(bucket.exchange)
            bucket.phase = Phase.IDLE
            used.update(n for n, u in zip(bucket.plan.parameters, bucket.used(self.round.device), strict=True) if u)
        # p.grad is the memory we send from, and LAMB, GradScaler, and clipping write to it.
        self.round.settle_sends()
        for number in used:
            self.parameters[number].grad = self._views[number]

    def drop_round(self) -> None:
        self.round.gradients_used()
        for parameter in self.parameters:
            parameter.grad = None

    def keep_gradients(self, numbers: Sequence[int]) -> None:
        for parameter in self.parameters:
            parameter.grad = None

    def drain(self) -> None:
        if self.round.is_open:
            self._model_round.abandon()
        elif self.round.is_armed:  # other workers may already be sending: receive and discard
            self.launch_rest()
            self.end_round()
            self.drop_round()
        self.round.settle_sends()

    # ---- a step

    def before_step(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        has_closure = len(args) > 1 or "closure" in kwargs
        if not self.round.awaits_step and not has_closure:
            self._begin()  # no backward on this worker, but perhaps on others
        if self.round.is_open:
            self._model_round.close()
        self.round.captures.refuse("optimizer.step()")
        TURNS.compute()
        self.clock.step_began()
        return None

    def after_step(self) -> None:
        self.round.gradients_used()
        self.num_steps += 1
        if self.round.streams:
            self.round.streams.step_ended()
        self.clock.step_ended()

    # ---- values

    def full_gradient(self, number: int) -> torch.Tensor:
        gradient = self.parameters[number].grad
        if gradient is None:
            raise OverlapError(
                f"{self.names[number]} has no gradient: call backward() first (if it has run, no worker used the "
                "parameter)"
            )
        return gradient.clone()

    def bound_s(self, forward_s: float, backward_s: float, reduce_s: float, gather_s: float, update_s: float) -> float:
        return ddp_bound_s(forward_s, backward_s, reduce_s, gather_s, update_s)
