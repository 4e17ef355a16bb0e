"""The default schedule: each worker updates its shard, parameters are gathered under the next forward.

    step()      the own shard of each bucket is updated, first layers first, and sent to the others
    forward     whoever reads a parameter waits for the buckets it lies in (reading.py)

[Note: eager]  With ``eager`` a bucket may also be updated and gathered during backward.  Only idle time of the link
is used: a gather in front of a reduction delays the first layers, which everybody waits for.  So a bucket goes
early if our side of the link is idle, reckoned from the bytes we handed to it and its measured speed, and if the
gather and all reductions still to come fit into what is left of backward, reckoned from the last step.  (That the
others' reductions have come in says nothing about our own direction: going by it, one worker fills its direction
with gathers, the other waits for the reductions behind them, and the step was longer than with the barrier, 1.30 s
instead of 1.05 s.)  What is left at step() goes in forward order; where the network is the bottleneck that is
everything, and eager is the barrier schedule.  The others' shards of our parameters may be overwritten from the
moment our backward is done with all parameters of the bucket, so that no node of the graph still to run reads them.
A parameter with several owners in the module tree is left to step().  The first round is never eager: it shows
whether anybody clips or rescales gradients, while refusing still costs nothing.

[Note: sharing the device]  Every wait is a window in which another job may compute (weft.core.turns).  While one wants
to, step() runs in one such window: updates are short, and to queue for the device between two of them would leave the
network idle for a turn of the other job.  So all gathers are launched at once, waited for before the next forward
asks for the device, and forward and backward then run through.  While nobody wants the device nothing of this happens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from weft.core.turns import TURNS
from weft.errors import OverlapError
from weft.overlap.bucket import Bucket, Phase
from weft.overlap.flat import FlatMemory
from weft.overlap.gradient import ShardedGradient
from weft.overlap.norms import GradientArithmetic
from weft.overlap.reading import Readers
from weft.overlap.rounds import Rounds
from weft.overlap.timing import StepClock
from weft.overlap.transport.base import Transport
from weft.overlap.update import Options, ShardUpdate, frozen, options_of
from weft.perf.link import Link


class ShardedSchedule(Rounds):
    """Reduce under backward, update own shards, gather under the next forward."""

    def __init__(
        self,
        names: Sequence[str],
        parameters: Sequence[torch.nn.Parameter],
        optimizer: torch.optim.Optimizer,
        transport: Transport,
        clock: StepClock,
        comm_dtype: torch.dtype | None,
        *,
        eager: bool,
        overlapped: bool,
        shared: frozenset[int],
    ) -> None:
        super().__init__(names, parameters, optimizer, transport, clock, comm_dtype, overlapped)
        self.eager = eager
        # Whether eager rounds gather during backward; the tuner compares.  The same on every worker.
        self.early = True
        self.updates: list[ShardUpdate] = []
        self._addresses: list[int] = []
        self._shared = shared
        self._group_of = group_numbers(optimizer, parameters)
        self._readers = Readers(parameters, self._before_read)
        self.arithmetic = GradientArithmetic(self)
        self._gradients = [ShardedGradient(p, n, self.arithmetic) for n, p in enumerate(parameters)]
        self.link: Link | None = None
        self._link_busy_until_s = 0.0
        self._num_arrived = 0
        self._eager_options: Options | None = None
        # From the first bucket that leaves in an eager round until step(): values are neither old nor new.
        self._half_updated = False
        self._draining = False
        # Around every change of the optimizer's state, for who answers questions about it meanwhile.
        self.changing: Callable[[], AbstractContextManager[None]] = nullcontext

    def lay_out(self, memory: FlatMemory, cuts: Sequence[Sequence[int]]) -> None:
        super().lay_out(memory, cuts)
        self._addresses = [parameter.data_ptr() for parameter in self.parameters]
        self.updates = [ShardUpdate(bucket, self.optimizer, self._group_of) for bucket in self.buckets]

    def forget_plan(self) -> None:
        super().forget_plan()
        self.updates = []

    @property
    def eager_now(self) -> bool:
        """Whether this round updates during backward."""
        return self._under_eager_rules and self.early

    @property
    def _under_eager_rules(self) -> bool:
        """Whether a round might update during backward: what is refused must not hang on what the tuner found."""
        # Filling idle time is each worker's own decision, which a carrier that needs one order cannot follow.
        able = self.link is not None and not self.transport.ordered
        return self.eager and self.overlapped and able and not self._draining

    # ---- backward

    def _take_gradient(self, number: int) -> torch.Tensor:
        parameter = self.parameters[number]
        gradient = parameter.grad
        if isinstance(gradient, ShardedGradient):
            gradient = gradient.take_added()
        if gradient is None:
            raise OverlapError(
                f"the gradient of {self.names[number]} was taken away while backward ran: a hook of the model "
                "sets .grad; let hooks return a new gradient instead"
            )
        if not self._open:
            self._check_memory()
            # Before p.grad of this parameter changes: what still stands for the last round is to be carried.
            self._begin()
        parameter.grad = self._gradients[number]
        return gradient

    def _left_over_gradient(self, number: int) -> torch.Tensor | None:
        gradient = self.parameters[number].grad
        return gradient.take_added() if isinstance(gradient, ShardedGradient) else gradient

    def _round_closed(self) -> None:
        # Also for those used on other workers only: our shard of them is scaled and clipped like the rest.
        for parameter, gradient in zip(self.parameters, self._gradients, strict=True):
            parameter.grad = gradient

    def _prepare_buckets(self) -> None:
        carried = {n for n, p in enumerate(self.parameters) if isinstance(p.grad, ShardedGradient)}
        self._settle(self._gathering())
        for bucket in self.buckets:
            if bucket.phase is Phase.UPDATED:
                raise OverlapError(
                    "backward() ran again although eager=True has already updated parameters with the gradients of "
                    "the last one: call optimizer.step() after each backward(), or use eager=False"
                )
            if bucket.phase is Phase.REDUCING:
                self._reduce(bucket)
            if bucket.exchange.reduced is not None and not self._armed:
                bucket.keep_as_carry(carried)
        self.arithmetic.forget()
        self._num_arrived = 0
        # Noted before anything is updated: which buckets are updated early differs between workers, and a change
        # that one of them refuses must be refused by all.
        self._eager_options = frozen(options_of(self.optimizer)) if self._under_eager_rules else None

    def _may_overwrite_gradients(self) -> bool:
        # Gradients that were not zeroed lie in memory that the others would overwrite: let backward sort it out.
        return not any(isinstance(p.grad, ShardedGradient) for p in self.parameters)

    def _after_launch(self, bucket: Bucket) -> None:
        self._occupy_link(bucket.exchange.reduce_bytes)
        if self.eager_now and not self._left_to_step(bucket):
            self._half_updated = True
            self._readers.guard(bucket.plan.parameters)
            # A node of the graph that still wants the old values (through a detached alias) fails loudly.
            torch.autograd.graph.increment_version([self.parameters[n] for n in bucket.plan.parameters])
            self.transport.open_gather(bucket.exchange, self.num_steps)

    def _left_to_step(self, bucket: Bucket) -> bool:
        return not self._shared.isdisjoint(bucket.plan.parameters)

    def _make_progress(self) -> None:
        if not self.eager_now:
            return
        while self._num_arrived < self._next_launch:
            if not self.transport.reduce_arrived(self.buckets[self._num_arrived].exchange):
                break
            self._num_arrived += 1
        self._fill_idle_link()

    def _fill_idle_link(self) -> None:
        """Update and send a bucket if our side of the link is idle and will not be missed by a reduction."""
        assert self.link is not None
        now = self.clock.now()
        if now < self._link_busy_until_s:
            return
        to_reduce = sum(bucket.exchange.reduce_bytes for bucket in self.buckets[self._next_launch :])
        until_end_s = self.clock.expected_backward_end_s() - now
        # The newest first: of what can go now it is read earliest in the next forward.
        for bucket in reversed(self.buckets[: self._num_arrived]):
            if bucket.phase is Phase.REDUCING and not self._left_to_step(bucket):
                if self.link.beta_s_per_byte * (bucket.exchange.gather_bytes + to_reduce) < until_end_s:
                    self._update(bucket, options_of(self.optimizer), {})
                    self._gather(bucket)
                return

    def _occupy_link(self, num_bytes: int) -> None:
        if self.link is not None:
            takes = self.link.alpha_s + self.link.beta_s_per_byte * num_bytes
            self._link_busy_until_s = max(self._link_busy_until_s, self.clock.now()) + takes

    def _drop_round(self) -> None:
        if self._half_updated:
            # Which buckets were updated differs between workers: end the step on all of them, alike, then say so.
            self.clock.step_began()
            self._apply(options_of(self.optimizer), {})
            self.flush()
            for parameter in self.parameters:
                parameter.grad = None
            raise OverlapError(
                "an exception left backward() after eager=True had updated some parameters: this step cannot be "
                "taken back; load the last checkpoint, or use eager=False where exceptions are expected"
            )
        for bucket in self.buckets:
            if bucket.phase is Phase.REDUCING:
                self._reduce(bucket)
            bucket.carry = None
            bucket.phase = Phase.IDLE
        self._had_round = False
        for parameter in self.parameters:
            if isinstance(parameter.grad, ShardedGradient):
                parameter.grad = None

    # ---- step

    def before_step(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Everything the step does; the optimizer's own step then finds no gradients and does nothing."""
        args, kwargs = _run_closure(args, kwargs)
        if not self._open and not self._had_round:
            self._begin()  # no backward on this worker: the others may have had one
        if self._open:
            self._close_round()
        self._had_round = False
        self._check_memory()
        options = options_of(self.optimizer)
        if self._eager_options is not None and self._eager_options != frozen(options):
            raise OverlapError(
                "an option of the optimizer (the learning rate?) changed between backward() and step(), but eager=True "
                "may have used the old one already: change it before backward(), or use eager=False"
            )
        for parameter in self.parameters:
            parameter.grad = None
        self.send_buffers()
        self._await_all_workers()
        with self.changing():
            self._apply(options, _amp_attributes(self.optimizer))
        return args, kwargs

    def _await_all_workers(self) -> None:
        """Until every worker has sent a gradient of this step.

        Before that the state is still that of the last step, and a worker that has sent nothing may be asking for it:
        to wait for it inside ``changing`` would be to wait for each other.
        """
        self.clock.step_began()
        if self.buckets and self.buckets[0].phase is Phase.REDUCING:
            self._reduce(self.buckets[0])

    def _check_memory(self) -> None:
        with torch._C.DisableTorchFunctionSubclass():  # where the memory is, not what is in it: nothing to wait for
            addresses = [parameter.data_ptr() for parameter in self.parameters]
        for number, address in enumerate(addresses):
            if address != self._addresses[number]:
                raise OverlapError(
                    f"the memory of {self.names[number]} was replaced after weft.overlap was called (model.to()? "
                    "p.data = ...?): call detach() on every worker before such a change and weft.overlap after it"
                )

    def after_step(self) -> None:
        for parameter, gradient in zip(self.parameters, self._gradients, strict=True):
            parameter.grad = gradient

    def _apply(self, options: Options, amp: dict[str, Any]) -> None:
        clock = self.clock
        self._half_updated = False
        self._readers.guard(range(len(self.parameters)))
        forward_order = self.buckets[::-1]
        for bucket in forward_order:
            if bucket.phase is not Phase.GATHERING and (not self.eager_now or self._left_to_step(bucket)):
                self.transport.open_gather(bucket.exchange, self.num_steps)
        for bucket in forward_order:
            # Until the first layers' reduction is here there is time for the updates of the others.
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
        if not self.overlapped:
            self.flush()

    def reduce_all(self) -> None:
        """Have every bucket's own shard of the gradients complete (for clipping and rescaling)."""
        if self._open:
            self._close_round()
        for bucket in self.buckets:
            if bucket.phase is Phase.REDUCING:
                self._reduce(bucket)

    def _reduce(self, bucket: Bucket) -> None:
        if self.transport.reduce_arrived(bucket.exchange):
            self._finish_reduce(bucket)
        else:
            with TURNS.yielded(later=True, insist=True):
                self._finish_reduce(bucket)
        bucket.add_carry()
        bucket.phase = Phase.REDUCED
        if bucket.plan.index == 0 and not self.transport.ordered:  # there it would make the host wait for the device
            self.num_votes = bucket.votes()

    def _finish_reduce(self, bucket: Bucket) -> None:
        with self.clock.waiting("reduce-scatter", bucket):
            self.transport.finish_reduce(bucket.exchange)

    def _update(self, bucket: Bucket, options: Options, amp: dict[str, Any]) -> None:
        if bucket.phase is Phase.REDUCING:
            self._reduce(bucket)
        with self.clock.updating(bucket):
            self.updates[bucket.plan.index].apply(options, amp)
        bucket.phase = Phase.UPDATED

    def _gather(self, bucket: Bucket) -> None:
        self.clock.launched("all-gather", bucket)
        self.transport.launch_gather(bucket.exchange, self.num_steps)
        self._occupy_link(bucket.exchange.gather_bytes)
        bucket.phase = Phase.GATHERING

    # ---- forward

    def before_compute(self) -> None:
        if TURNS.gave_way and TURNS.contended:
            self._settle(self._gathering())

    def _before_read(self, number: int) -> None:
        TURNS.border()
        self._refuse_half_updated(self.names[number])
        for bucket in self._buckets_of[number]:
            if bucket.phase is Phase.GATHERING:
                self._settle(self._gathering() if TURNS.contended else [bucket])
        self._readers.release(number)
        self.clock.parameter_read(number)

    def _gathering(self) -> list[Bucket]:
        """Under way, first layers first."""
        return [bucket for bucket in reversed(self.buckets) if bucket.phase is Phase.GATHERING]

    def _settle(self, buckets: Sequence[Bucket]) -> None:
        if not buckets:
            return
        # Between two layers, when others have arrived already, it is not for long.
        with TURNS.yielded(briefly=len(self._gathering()) < len(self.buckets)):
            for bucket in buckets:
                with self.clock.waiting("all-gather", bucket):
                    self.transport.finish_gather(bucket.exchange)
                bucket.phase = Phase.IDLE
            if TURNS.sharing and not self._gathering():
                # Our own sends end about now too; to wait for them in backward would cost another turn.
                for bucket in self.buckets:
                    self.transport.settle_sends(bucket.exchange)

    def drain(self) -> None:
        if self._open:
            self.abandon()
        self.flush()
        self._draining = True
        try:
            super().drain()
        finally:
            self._draining = False

    def give_back_gradients(self) -> None:
        """Leave nothing in ``p.grad`` that only we could answer for."""
        for parameter in self.parameters:
            if isinstance(parameter.grad, ShardedGradient):
                parameter.grad = None

    def flush(self) -> None:
        self._refuse_half_updated("a parameter")
        self._settle(self._gathering())
        for number in range(len(self.parameters)):
            self._readers.release(number)

    def _refuse_half_updated(self, what: str) -> None:
        if self._half_updated:
            raise OverlapError(
                f"{what} is read between backward() and step(), while eager=True replaces its values: "
                "read it after step(), or use eager=False"
            )


def group_numbers(optimizer: torch.optim.Optimizer, parameters: Sequence[torch.nn.Parameter]) -> list[int]:
    """For each parameter, the number of the optimizer's group it is in."""
    group_of = {id(p): g for g, group in enumerate(optimizer.param_groups) for p in group["params"]}
    return [group_of[id(parameter)] for parameter in parameters]


def _run_closure(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """``step(closure)``: the backward inside the closure must have ended before shards can be updated."""
    closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
    if closure is None:
        return args, kwargs
    with torch.enable_grad():
        loss = closure()
    kwargs = {key: value for key, value in kwargs.items() if key != "closure"}
    return (args[0], lambda: loss), kwargs


def _amp_attributes(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """What GradScaler leaves on an optimizer that unscales inside its own step (the fused ones)."""
    if not getattr(optimizer, "_step_supports_amp_scaling", False):
        return {}
    return {name: getattr(optimizer, name) for name in ("grad_scale", "found_inf") if hasattr(optimizer, name)}
