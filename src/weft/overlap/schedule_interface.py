"""The common interface of both schedules: sharded.py (the default) and replicated.py.

A schedule owns one :class:`~weft.overlap.round.Round` and drives it; nothing below a schedule calls back into it.
:class:`ModelRound` handles what concerns all parts of a model together: a backward is a round of every part.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Protocol

import torch

from weft.overlap.bucket import Bucket
from weft.overlap.eager_pacing import EagerPacing
from weft.overlap.flat import FlatMemory
from weft.overlap.round import Round
from weft.overlap.timing import StepClock
from weft.overlap.transport.base import Transport
from weft.process.turns import TURNS


class ModelRound(Protocol):
    """The rounds of all parts of a model, which begin and end together."""

    def await_end(self) -> None:
        """Close the round when this backward ends."""

    def close(self) -> None:
        """End the round of all parts."""

    def abandon(self) -> None:
        """End the round of all parts on all workers, and discard it."""


class Schedule(ABC):
    """One optimizer's parameters: how their gradients are averaged and their values updated."""

    # Whether each worker updates only its shard: then step() is collective, and tuning the plan pays off.
    is_sharded: ClassVar[bool]

    def __init__(self, round: Round, model_round: ModelRound, *, overlapped: bool, eager: bool = False) -> None:
        self.round = round
        self.names: Sequence[str] = round.names
        self.parameters: Sequence[torch.nn.Parameter] = round.parameters
        self.transport: Transport = round.transport
        self.clock: StepClock = round.clock
        self.overlapped = overlapped
        self.eager = eager
        self.num_steps = 0
        self.pacing: EagerPacing | None = None
        # Parameters whose gradients were not zeroed before the round, so that its results are added to them.
        self.carried: Sequence[int] = ()
        # Whether other workers repeat our calls (uneven_inputs.py), which does not cover assignments to p.grad.
        self.mirrored = False
        self._model_round = model_round

    @property
    def memory(self) -> FlatMemory:
        return self.round.memory

    @property
    def buckets(self) -> Sequence[Bucket]:
        return self.round.buckets

    # ---- the plan

    @abstractmethod
    def lay_out(self, memory: FlatMemory, cuts: Sequence[Sequence[int]]) -> None:
        """Make the buckets of a plan.  Nothing may be in flight on any worker."""

    @abstractmethod
    def forget_plan(self) -> None:
        """Free the buckets; another plan will reuse their memory."""

    def take_up(self, order: Sequence[int], cuts: Sequence[Sequence[int]]) -> None:
        """Switch to another plan.  Nothing may be in flight on any worker."""
        self.forget_plan()  # so that its memory can be reused
        memory = self.memory
        if tuple(order) != memory.order:
            memory = FlatMemory(self.parameters, order, self.transport.num_workers, memory.whole)
        self.lay_out(memory, cuts)

    # ---- a pass

    @abstractmethod
    def forward_begins(self) -> None:
        """A training forward begins: other workers may now send early."""

    def before_compute(self) -> None:
        """A forward is about to ask for the device: wait now for what it would wait for later."""

    @abstractmethod
    def gradient_ready(self, number: int) -> None:
        """A parameter's gradient is complete; called by autograd."""

    @abstractmethod
    def launch_rest(self) -> None:
        """Launch the remaining buckets, with zeros for parameters this worker did not use."""

    @abstractmethod
    def _begin(self) -> None:
        """Begin a round: wait for what is in flight, and let the others send."""

    def join_empty(self) -> None:
        """Take part in a round of the others, with zeros for parameters used by any worker so far, like DDP's join."""
        used = [bucket.used_lately() for bucket in self.buckets]
        self._begin()
        self.round.collect_zeros(used)

    @abstractmethod
    def end_round(self) -> None:
        """After every part has launched its last bucket."""

    @abstractmethod
    def drop_round(self) -> None:
        """Wait for what the round has launched, and discard it."""

    @abstractmethod
    def keep_gradients(self, numbers: Sequence[int]) -> None:
        """On a worker without gradients of its own: keep only those of these parameters."""

    @abstractmethod
    def drain(self) -> None:
        """Wait until nothing is in flight here.  Collective; between steps."""

    def meet(self) -> None:
        """Wait until every worker has come here, so that what they did before is done.  Collective.

        After :meth:`drain`, another worker may still be copying values from memory that this one shares with it.
        """
        arrived = torch.zeros(1, device=self.parameters[0].device)
        with TURNS.yielded(later=True):
            self.transport.all_reduce(arrived).item()  # otherwise the host would not wait for a device

    # ---- a step

    @abstractmethod
    def before_step(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Before the optimizer's own step; may replace its arguments."""

    @abstractmethod
    def after_step(self) -> None:
        """After the optimizer's own step."""

    # ---- values

    @property
    def readable(self) -> bool:
        """Whether parameters can be read, after a wait; otherwise reading raises an error."""
        return True

    def flush(self) -> None:
        """Wait until nothing is in flight and every parameter has its newest value."""

    def give_back_gradients(self) -> None:
        """Leave only ordinary tensors in ``p.grad``."""

    @abstractmethod
    def full_gradient(self, number: int) -> torch.Tensor:
        """The full averaged gradient of one parameter.  Collective."""

    def clip(self, parameters: Sequence[torch.nn.Parameter], max_norm: float, norm_type: float) -> torch.Tensor:
        """Clip the gradients of all parameters of this schedule, given in the model's order; returns their norm."""
        return torch.nn.utils.clip_grad_norm_(parameters, max_norm, norm_type)

    @abstractmethod
    def bound_s(self, forward_s: float, backward_s: float, reduce_s: float, gather_s: float, update_s: float) -> float:
        """The shortest step that this kind of schedule can have."""

    def announced(self) -> Iterable[tuple[Any, str]]:
        """Collective methods, as (owner, name): workers that mirror this one must call them, too."""
        return ()
