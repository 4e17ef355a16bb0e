"""The default schedule: each worker updates its shard, and parameters are gathered under the next forward.

    backward    with ``eager``, some buckets are updated and gathered before step() (eager_pacing.py)
    step()      updates this worker's shard of each bucket, first layers first, and launches the gathers
    forward     reading a parameter waits for its buckets (gathers.py, reading.py)

See [Note: eager] in eager_pacing.py and [Note: sharing the device] in gathers.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch

from weft.errors import OverlapError
from weft.overlap.bucket import Bucket, Phase
from weft.overlap.device import Written
from weft.overlap.eager_pacing import EagerPacing
from weft.overlap.flat import FlatMemory
from weft.overlap.gathers import Gathers
from weft.overlap.gradient import ShardedGradient
from weft.overlap.norms import GradientArithmetic
from weft.overlap.round import Round
from weft.overlap.schedule_interface import ModelRound, Schedule
from weft.overlap.state_runs import StateRun, export_runs
from weft.overlap.state_service import StateChanges
from weft.overlap.update import Options, ShardUpdate, amp_attributes, group_numbers, options_of, run_closure
from weft.perf.schedule import barrier_bound_s, eager_bound_s
from weft.process.turns import TURNS


class ShardedSchedule(Schedule):
    """Reduce under backward, update own shards, gather under the next forward."""

    is_sharded = True

    def __init__(
        self,
        round: Round,
        model_round: ModelRound,
        optimizer: torch.optim.Optimizer,
        state_changes: StateChanges,
        *,
        eager: bool,
        overlapped: bool,
        shared: frozenset[int],
    ) -> None:
        super().__init__(round, model_round, overlapped=overlapped, eager=eager)
        transport, clock, parameters = round.transport, round.clock, round.parameters
        self.optimizer = optimizer
        self.updates: list[ShardUpdate] = []
        self.pacing: EagerPacing = EagerPacing(optimizer, transport, clock, shared, enabled=eager and overlapped)
        self.arithmetic = GradientArithmetic(self)
        self.gradients = [ShardedGradient(p, n, self.arithmetic) for n, p in enumerate(parameters)]
        self._state_changes = state_changes
        self._device = transport.device
        self._streams = round.streams
        self._group_of = group_numbers(optimizer, parameters)
        self._gathers = Gathers(round)
        self._state_written: Any = None

    def lay_out(self, memory: FlatMemory, cuts: Sequence[Sequence[int]]) -> None:
        plans = self.round.take_up(memory, cuts)
        self.round.make_buckets(plans, memory.buffers)
        if self._streams:  # also before the first step, to notice CUDA graphs that read parameters
            self._gathers.guard_all()
        self.updates = [ShardUpdate(bucket, self.optimizer, self._group_of, self._device) for bucket in self.buckets]

    def forget_plan(self) -> None:
        self.round.forget_plan()
        self._gathers.release_all()
        self.updates = []

    # ---- a pass

    def forward_begins(self) -> None:
        # Gradients that were not zeroed are in memory that other workers would overwrite: _begin() saves them first.
        if not any(isinstance(parameter.grad, ShardedGradient) for parameter in self.parameters):
            self.round.arm()

    def gradient_ready(self, number: int) -> None:
        if not self.round.accepts(number):
            return
        gradient = self.round.checked(number, self._local_gradient(number))
        if not self.round.is_open:
            self.round.check_memory()
            self._begin()  # before p.grad changes: gradients of the last round that are still there are carried
        self.parameters[number].grad = self.gradients[number]
        self._model_round.await_end()
        self.round.collect(number, gradient)
        if self.overlapped:
            while self.round.next_is_complete:
                self._launch_next()
            self._gather_early()

    def _local_gradient(self, number: int) -> torch.Tensor | None:
        gradient = self.parameters[number].grad
        return gradient.take_added() if isinstance(gradient, ShardedGradient) else gradient

    def _begin(self) -> None:
        was_armed = self.round.open()
        self._prepare_buckets(was_armed)
        if not was_armed:
            self.round.post_receives()
        self._gathers.settle_all_sends()
        self.round.start()

    def _prepare_buckets(self, was_armed: bool) -> None:
        """Wait for everything in flight, and keep gradients that were not zeroed."""
        self.carried = [n for n, p in enumerate(self.parameters) if isinstance(p.grad, ShardedGradient)]
        self._gathers.settle_all()
        if self._streams:
            self._gathers.release_ended()
        for bucket in self.buckets:
            if bucket.phase is Phase.UPDATED:
                raise OverlapError(
                    "backward() ran again although eager=True has already updated parameters with the gradients of "
                    "the last one: call optimizer.step() after each backward(), or use eager=False"
                )
            if bucket.phase is Phase.REDUCING:
                self._reduce(bucket)
            if bucket.exchange.reduced is not None and not was_armed:
                bucket.keep_as_carry(set(self.carried))
        for parameter, gradient in zip(self.parameters, self.gradients, strict=True):
            if parameter.grad is not gradient:
                gradient.take_added()  # it was zeroed
        self.arithmetic.forget()
        self.pacing.round_began()

    def _launch_next(self) -> None:
        bucket = self.round.launch_next()
        self.pacing.sent(bucket.exchange.reduce_bytes)
        if self.pacing.may_go_early(bucket):
            self._gathers.open_early(bucket, self.num_steps)

    def _gather_early(self) -> None:
        bucket = self.pacing.next_bucket(self.buckets, self.round.num_launched) if self.eager else None
        if bucket is not None:
            self._update(bucket, options_of(self.optimizer), {})
            self._gather(bucket)

    def launch_rest(self) -> None:
        if not self.round.is_open:
            self._begin()
        self.round.collect_left_over(self._local_gradient)
        while not self.round.all_launched:
            self._launch_next()

    def end_round(self) -> None:
        self.round.end()
        # Also for parameters used only on other workers: our shard of them is scaled and clipped like the rest.
        for parameter, gradient in zip(self.parameters, self.gradients, strict=True):
            if gradient.requires_grad:  # a change outside no_grad() has made a graph that is not needed
                gradient.detach_()
            parameter.grad = gradient

    def keep_gradients(self, numbers: Sequence[int]) -> None:
        for number, parameter in enumerate(self.parameters):
            parameter.grad = self.gradients[number] if number in numbers else None

    def drop_round(self) -> None:
        if self._gathers.half_updated:
            self._end_half_updated()
            raise OverlapError(
                "an exception interrupted backward() after eager=True had updated some parameters, which cannot be "
                "undone: load the last checkpoint, or use eager=False where exceptions are expected"
            )
        for bucket in self.buckets:
            if bucket.phase is Phase.REDUCING:
                self._reduce(bucket)
            bucket.exchange.carry = None
            bucket.phase = Phase.IDLE
        self.round.gradients_used()
        self._forget_sharded_gradients()

    def _forget_sharded_gradients(self) -> None:
        for parameter in self.parameters:
            if isinstance(parameter.grad, ShardedGradient):
                parameter.grad = None

    def _end_half_updated(self) -> None:
        """Workers have updated different buckets early: complete the step on all of them."""
        self._await_all_workers()
        options = self.pacing.options_at_begin()
        with self._state_changes.stepping():
            self._apply(options, {})
        self.round.gradients_used()
        self.flush()
        for parameter in self.parameters:
            parameter.grad = None

    # ---- step

    def before_step(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Do the whole step; the optimizer's own step then finds no gradients and does nothing."""
        self.round.captures.refuse("optimizer.step()")
        args, kwargs = run_closure(args, kwargs)
        if not self.round.awaits_step:
            self._begin()  # no backward on this worker, but perhaps on others
        if self.round.is_open:
            self._model_round.close()
        self.arithmetic.take_assigned()
        self.round.check_memory()
        options = options_of(self.optimizer)
        self.pacing.check_options(options)
        self.update(options, amp_attributes(self.optimizer))
        return args, kwargs

    def update(self, options: Options, amp: dict[str, Any]) -> None:
        """Make a step with the gradients of the last round.  Collective."""
        self.round.gradients_used()
        for parameter in self.parameters:
            parameter.grad = None
        self._await_all_workers()
        with self._state_changes.stepping():
            self._apply(options, amp)

    def _await_all_workers(self) -> None:
        """Wait until every worker has sent a gradient of this step.

        Until then, a worker that has sent nothing may be asking for the state of the last step: waiting for it inside
        ``stepping`` would deadlock.
        """
        self.clock.step_began()
        if self.buckets and self.buckets[0].phase is Phase.REDUCING:
            self._reduce(self.buckets[0])

    def after_step(self) -> None:
        for number, gradient in enumerate(self.gradients):
            skipped = any(number in bucket.skipped for bucket in self.round.buckets_of[number])
            self.parameters[number].grad = None if skipped else gradient

    def skip(self, number: int, skips: bool) -> None:
        """Set whether the next step leaves a parameter unchanged, because its gradient was set to None."""
        for bucket in self.round.buckets_of[number]:
            (bucket.skipped.add if skips else bucket.skipped.discard)(number)

    def _apply(self, options: Options, amp: dict[str, Any]) -> None:
        clock = self.clock
        self._gathers.half_updated = False
        self._gathers.guard_all()
        forward_order = self.buckets[::-1]
        for bucket in forward_order:
            if bucket.phase is not Phase.GATHERING and not self.pacing.may_go_early(bucket):
                self._gathers.open(bucket, self.num_steps)
        for bucket in forward_order:
            # While the first layers' reduction is in flight, there is time to update others.
            while bucket.phase is Phase.REDUCING and not self.transport.reduce_arrived(bucket.exchange):
                earliest = next(b for b in self.buckets if b.phase in (Phase.REDUCING, Phase.REDUCED))
                if earliest is bucket:
                    break
                self._update(earliest, options, amp)
            if bucket.phase in (Phase.REDUCING, Phase.REDUCED):
                self._update(bucket, options, amp)
            if bucket.phase is Phase.UPDATED:
                self._gather(bucket)
        torch.autograd.graph.increment_version(self.parameters)
        self.num_steps += 1
        clock.step_ended()
        if not self.overlapped or self.round.captures.seen:
            self._gathers.settle_all()
        if not self.overlapped and not self._streams:
            self._gathers.settle_all_sends()  # also releases parameters: writes to them no longer wait
        if self._streams:
            self._streams.step_ended()
            self.state_changed()

    def reduce_all(self) -> None:
        """Complete our shard of every bucket's gradients (for clipping and rescaling)."""
        if self.round.is_open:
            self._model_round.close()
        for bucket in self.buckets:
            self._reduce(bucket)

    def _reduce(self, bucket: Bucket) -> None:
        """Complete our shard of a bucket's gradients; if it is complete, only make the current stream wait for it."""
        if bucket.phase is not Phase.REDUCING:
            if self._streams and bucket.phase is Phase.REDUCED:
                self.transport.finish_reduce(bucket.exchange)
            return
        if self.transport.reduce_arrived(bucket.exchange):
            self._finish_reduce(bucket)
        else:
            with TURNS.yielded(later=True, insist=True):
                self._finish_reduce(bucket)
        carry = bucket.exchange.carry
        if carry is not None:
            if self._streams:
                self._device.keep(carry)  # allocated on the stream on which backward began
            bucket.add_carry()
            if self._streams:
                bucket.exchange.reduce_works.append(Written(self._device))
        bucket.phase = Phase.REDUCED
        if bucket.plan.index == 0:
            self.round.count_votes()

    def _finish_reduce(self, bucket: Bucket) -> None:
        with self.clock.waiting("reduce-scatter", bucket):
            self.transport.finish_reduce(bucket.exchange)

    def _update(self, bucket: Bucket, options: Options, amp: dict[str, Any]) -> None:
        self._reduce(bucket)
        if self._streams:  # of the last step: perhaps only other streams have waited for it
            self.transport.finish_gather(bucket.exchange)
        with self.clock.updating(bucket):
            self.updates[bucket.plan.index].apply(options, amp)
        bucket.phase = Phase.UPDATED

    def _gather(self, bucket: Bucket) -> None:
        self._gathers.launch(bucket, self.num_steps)
        self.pacing.sent(bucket.exchange.gather_bytes)

    # ---- forward

    def before_compute(self) -> None:
        if TURNS.gave_way and TURNS.contended:
            self._gathers.settle_all()

    def drain(self) -> None:
        if self._gathers.half_updated:  # an error during or after an eager backward prevented step()
            if self.round.is_open:
                self._model_round.close()
            self._end_half_updated()
        if self.round.is_open:
            self._model_round.abandon()
        self.flush()
        if self.round.is_armed:  # other workers may already be sending: receive and discard
            with self.pacing.paused():
                self.launch_rest()
                self.end_round()
                self.drop_round()
        self._gathers.settle_all_sends()

    # ---- values and gradients

    def full_gradient(self, number: int) -> torch.Tensor:
        return self.arithmetic.full_gradient(number)

    def clip(self, parameters: Sequence[torch.nn.Parameter], max_norm: float, norm_type: float) -> torch.Tensor:
        if self.memory.whole:
            return super().clip(parameters, max_norm, norm_type)
        total = self.arithmetic.total_norm(float(norm_type)).to(self.parameters[0].dtype)
        self.arithmetic.scale_gradients(torch.clamp(max_norm / (total + 1e-6), max=1.0))
        return total

    def give_back_gradients(self) -> None:
        self._gathers.release_all()
        self._forget_sharded_gradients()

    def announced(self) -> Iterable[tuple[Any, str]]:
        yield self, "update"
        for name in self.arithmetic.collective_names():
            yield self.arithmetic, name

    def bound_s(self, forward_s: float, backward_s: float, reduce_s: float, gather_s: float, update_s: float) -> float:
        bound_of = eager_bound_s if self.eager else barrier_bound_s
        return bound_of(forward_s, backward_s, reduce_s, gather_s, update_s)

    @property
    def readable(self) -> bool:
        return not self._gathers.half_updated

    def flush(self) -> None:
        self._gathers.flush()

    # ---- state, for the thread of the state service

    def state_changed(self) -> None:
        """The current stream has written the optimizer's state."""
        if self._streams:
            self._state_written = self._device.record()

    def state_aside(self) -> list[StateRun]:
        """Our part of the state, for a thread whose stream is not ordered behind the training's."""
        if not self._streams:
            return export_runs(self.updates)
        with self._device.on_own_stream():
            if self._state_written is not None:
                self._device.wait(self._state_written)
            return [
                replace(run, values=self._device.to_host(run.values), on_device=not run.values.is_cpu)
                for run in export_runs(self.updates)
            ]
