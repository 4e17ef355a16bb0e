"""The schedule for optimizers that look at more than one element at a time (LAMB, Adafactor, Muon, L-BFGS ...).

Reduce-scatter runs under backward as in the sharded schedule; then the *gradients* are gathered, and every
worker runs the user's optimizer on all of them.  When ``backward()`` returns, ``p.grad`` is the averaged gradient,
an ordinary tensor, as with DDP: clipping, GradScaler and closures need nothing special.
"""

from __future__ import annotations

from typing import Any

import torch

from weft.core.turns import TURNS
from weft.errors import OverlapError
from weft.overlap.bucket import Phase
from weft.overlap.rounds import Rounds


class ReplicatedSchedule(Rounds):
    """Reduce under backward, gather the gradients at its end, update everywhere."""

    def _exchange_buffers(self) -> list[torch.Tensor]:
        self._gradient_buffers = [torch.zeros_like(buffer) for buffer in self.memory.buffers]
        slots = {slot.parameter: (lane, slot) for lane, of in enumerate(self.memory.lanes) for slot in of.slots}
        self._views = []
        for number, parameter in enumerate(self.parameters):
            lane, slot = slots[number]
            view = self._gradient_buffers[lane].as_strided(parameter.shape, parameter.stride(), slot.offset)
            self._views.append(view)
        return self._gradient_buffers

    def _take_gradient(self, number: int) -> torch.Tensor:
        gradient = self.parameters[number].grad
        if gradient is None:
            raise OverlapError(
                f"the gradient of {self.names[number]} was taken away while backward ran: a hook of the model "
                "sets .grad; let hooks return a new gradient instead"
            )
        return gradient

    def _left_over_gradient(self, number: int) -> torch.Tensor | None:
        return self.parameters[number].grad

    def _prepare_buckets(self) -> None:
        pass  # a round leaves nothing under way

    def _round_closed(self) -> None:
        with TURNS.yielded(later=True):
            self._gather_gradients()

    def _gather_gradients(self) -> None:
        rank = self.transport.rank
        for bucket in self.buckets:
            with self.clock.waiting("reduce-scatter", bucket):
                reduced = self.transport.finish_reduce(bucket.exchange)
            region = bucket.exchange.region.view(self.transport.num_workers, bucket.shard)
            region[rank].copy_(reduced[: bucket.shard])
            self.clock.launched("all-gather", bucket)
            self.transport.open_gather(bucket.exchange, self._round)
            self.transport.launch_gather(bucket.exchange, self._round)
        self.num_votes = 0 if self.transport.ordered else self.buckets[0].votes()
        used: set[int] = set()
        for bucket in self.buckets:
            with self.clock.waiting("all-gather", bucket):
                self.transport.finish_gather(bucket.exchange)
            bucket.phase = Phase.IDLE
            used.update(n for n, u in zip(bucket.plan.parameters, bucket.used(), strict=True) if u)
        for number in used:
            self.parameters[number].grad = self._views[number]

    def _drop_round(self) -> None:
        self._had_round = False
        for parameter in self.parameters:
            parameter.grad = None

    def before_step(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        has_closure = len(args) > 1 or "closure" in kwargs
        if not self._open and not has_closure and not self._had_round:
            self._begin()  # no backward on this worker: the others may have had one
        if self._open:
            self._close_round()
        TURNS.compute()
        self.clock.step_began()
        return None

    def after_step(self) -> None:
        self.send_buffers()  # only now: a closure's forward, inside step(), changes them too
        self._had_round = False
        self.num_steps += 1
        self.clock.step_ended()
