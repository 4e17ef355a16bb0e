"""What a schedule offers, whichever kind it is: sharded.py (the default) and replicated.py.

A schedule owns one :class:`~weft.overlap.round.Round` and drives it; nothing below a schedule calls back into it.  What
concerns all parts of a model at once (a backward is a round of every part) it asks of a :class:`ModelRound`.
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


class ModelRound(Protocol):
    """The rounds of all parts of a model, which begin and end together."""

    def await_end(self) -> None:
        """A gradient came: close the round when this backward ends."""

    def close(self) -> None:
        """End the round of all parts."""

    def abandon(self) -> None:
        """End the round of all parts on all workers; keep nothing of it."""


class Schedule(ABC):
    """One optimizer's parameters: how their gradients are averaged and their values updated."""

    # Whether each worker updates only its shard, so that step() is collective and the plan is worth tuning.
    is_sharded: ClassVar[bool]

    def __init__(self, round: Round, model_round: ModelRound, *, overlapped: bool, eager: bool = False) -> None:
        self.round = round
        self.overlapped = overlapped
        self.eager = eager
        self.num_steps = 0
        self.pacing: EagerPacing | None = None
        # Parameters whose gradients were not zeroed before the round, so that its results count on top of them.
        self.carried: Sequence[int] = ()
        # Whether other workers repeat every call of ours (uneven_inputs.py), but cannot see what is put into p.grad.
        self.mirrored = False
        self._model_round = model_round

    @property
    def names(self) -> Sequence[str]:
        return self.round.names

    @property
    def parameters(self) -> Sequence[torch.nn.Parameter]:
        return self.round.parameters

    @property
    def transport(self) -> Transport:
        return self.round.transport

    @property
    def clock(self) -> StepClock:
        return self.round.clock

    @property
    def memory(self) -> FlatMemory:
        return self.round.memory

    @property
    def buckets(self) -> Sequence[Bucket]:
        return self.round.buckets

    # ---- the plan

    @abstractmethod
    def lay_out(self, memory: FlatMemory, cuts: Sequence[Sequence[int]]) -> None:
        """Take up a plan.  Nothing may be under way."""

    @abstractmethod
    def forget_plan(self) -> None:
        """Let go of the buckets; another plan follows in their memory."""

    def take_up(self, order: Sequence[int], cuts: Sequence[Sequence[int]]) -> None:
        """Follow another plan.  Nothing may be under way."""
        self.forget_plan()  # the new buffers may take the place of the old ones
        memory = self.memory
        if tuple(order) != memory.order:
            memory = FlatMemory(self.parameters, order, self.transport.num_workers, memory.whole)
        self.lay_out(memory, cuts)

    # ---- a pass

    @abstractmethod
    def forward_begins(self) -> None:
        """A training forward of the whole model: a good moment to let the others send early."""

    def before_compute(self) -> None:
        """A forward is about to ask for the device: wait now for what it would wait for then."""

    @abstractmethod
    def gradient_ready(self, number: int) -> None:
        """A parameter's gradient is complete: called by autograd."""

    @abstractmethod
    def launch_rest(self) -> None:
        """Launch what is left, with zeros for parameters this worker did not use."""

    @abstractmethod
    def join_empty(self) -> None:
        """Take part in a round of the others: zeros for whatever anybody has used so far, as with DDP's join."""

    @abstractmethod
    def end_round(self) -> None:
        """After every part has launched its last bucket."""

    @abstractmethod
    def drop_round(self) -> None:
        """Wait for what the round has launched and forget it."""

    @abstractmethod
    def keep_gradients(self, numbers: Sequence[int]) -> None:
        """For a worker that has no gradients of its own: forget those of all parameters but these."""

    @abstractmethod
    def drain(self) -> None:
        """Nothing is under way on return, on any worker.  Collective; between steps."""

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
        """Whether waiting for a parameter gives its newest value, rather than an error."""
        return True

    def flush(self) -> None:
        """Nothing is under way on return; every parameter holds its newest value."""

    def give_back_gradients(self) -> None:
        """Leave nothing in ``p.grad`` that only we could answer for."""

    @abstractmethod
    def full_gradient(self, number: int) -> torch.Tensor:
        """The averaged gradient of one parameter, whole.  Collective."""

    def clip(self, parameters: Sequence[torch.nn.Parameter], max_norm: float, norm_type: float) -> torch.Tensor:
        """Clip the gradients of all parameters of this schedule, given in the model's order; their norm."""
        return torch.nn.utils.clip_grad_norm_(parameters, max_norm, norm_type)

    @abstractmethod
    def bound_s(self, forward_s: float, backward_s: float, reduce_s: float, gather_s: float, update_s: float) -> float:
        """The shortest step that this kind of schedule can have."""

    def announced(self) -> Iterable[tuple[Any, str]]:
        """Collective methods, as (owner, name): who mirrors this worker has to call them too."""
        return ()
