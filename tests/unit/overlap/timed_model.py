"""A model whose layers take virtual time, under a real schedule on a fake transport."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from fake_transport import FakeTransport, VirtualClock
from torch import nn

from weft.overlap.buffers import BufferSync
from weft.overlap.flat import FlatMemory
from weft.overlap.passes import Passes
from weft.overlap.round import Round
from weft.overlap.sharded import ShardedSchedule
from weft.overlap.state_service import StateChanges
from weft.overlap.timing import StepClock
from weft.perf.link import Link
from weft.perf.step_profile import ParameterTiming, StepProfile


class _Layer(torch.autograd.Function):
    """Reads its weight, then computes for a while."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: nn.Parameter, model: TimedModel, number: int) -> torch.Tensor:
        ctx.model, ctx.number = model, number
        value = x + weight.detach().sum()
        model.read_at_s[number] = model.clock.now()
        model.clock.advance(model.forward_s)
        ctx.save_for_backward(weight)
        return value

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        (weight,) = ctx.saved_tensors
        ctx.model.clock.advance(ctx.model.backward_s)
        if ctx.number == ctx.model.fails_at:
            raise ArithmeticError("the layer fails")
        return gradients[0], torch.ones_like(weight) * gradients[0], None, None


class TimedModel:
    """Equal layers, each one parameter."""

    def __init__(
        self,
        link: Link,
        *,
        num_layers: int = 8,
        num_elements: int = 1024,
        forward_s: float = 1.0,
        backward_s: float = 2.0,
        cuts: Sequence[int] | None = None,
        eager: bool = False,
        num_workers: int = 2,
        transport: Any = None,
    ) -> None:
        self.clock = VirtualClock()
        self.forward_s, self.backward_s = forward_s, backward_s
        self.parameters = [nn.Parameter(torch.ones(num_elements)) for _ in range(num_layers)]
        self.optimizer = torch.optim.SGD(self.parameters, lr=1e-6, weight_decay=0.5)
        self.transport = transport or FakeTransport(self.clock, link, num_workers)
        model, names = nn.ParameterList(self.parameters), [f"layer{n}" for n in range(num_layers)]
        step_clock = StepClock(0, self.clock.now)
        buffers = BufferSync(model, self.transport, step_clock, None, enabled=False, ignored=())  # type: ignore[arg-type]
        self.passes = Passes(model, {}, buffers)
        self.schedule = ShardedSchedule(
            Round(names, self.parameters, self.transport, step_clock, None, lambda: False),
            self.passes,
            self.optimizer,
            StateChanges(None),
            eager=eager,
            overlapped=True,
            shared=frozenset(),
        )
        self.passes.schedules.append(self.schedule)
        memory = FlatMemory(self.parameters, range(num_layers)[::-1], num_workers)
        self.cuts = tuple(range(num_elements, num_layers * num_elements, num_elements)) if cuts is None else tuple(cuts)
        self.schedule.lay_out(memory, [self.cuts])
        self.schedule.clock.link = link
        self.read_at_s: dict[int, float] = {}
        self.fails_at: int | None = None
        self.skipped: set[int] = set()
        for number, parameter in enumerate(self.parameters):
            parameter.register_post_accumulate_grad_hook(lambda p, n=number: self.schedule.gradient_ready(n))

    @property
    def profile(self) -> StepProfile:
        """The same model as the recurrence sees it."""
        count = len(self.parameters)
        timings = tuple(
            ParameterTiming(p.numel(), self.backward_s * (k + 1), self.forward_s * (count - 1 - k))
            for k, p in enumerate(self.parameters[::-1])
        )
        return StepProfile(timings, self.forward_s * count, self.backward_s * count, 0.0, 4)

    def forward(self) -> torch.Tensor:
        self.passes.forward_begins()
        x = torch.zeros((), requires_grad=True)
        for number, parameter in enumerate(self.parameters):
            if number not in self.skipped:
                x = _Layer.apply(x, parameter, self, number)
        self.passes.forward_ended()
        return x

    def step(self) -> None:
        self.schedule.before_step((self.optimizer,), {})
        self.schedule.after_step()
        self.optimizer.zero_grad()

    def train(self, steps: int) -> float:
        """Seconds of the last step, from one end of ``step()`` to the next."""
        began_s = 0.0
        for _ in range(steps):
            began_s = self.clock.now()
            self.forward().backward()
            self.step()
        return self.clock.now() - began_s
