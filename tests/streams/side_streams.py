"""A model that computes on two streams; autograd runs each operation's backward on the stream of its forward."""

from __future__ import annotations

from typing import Any

import torch
from recorder import Recorder
from torch import nn

from training import batch_generator


class _Switch(torch.autograd.Function):
    """What follows runs on another stream, after what came before; the reverse in backward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, recorder: Recorder, to: str) -> torch.Tensor:
        ctx.recorder, ctx.back, ctx.to = recorder, recorder.stream, to
        _go_on(recorder, recorder.stream, to, x)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        _go_on(ctx.recorder, ctx.to, ctx.back, gradients[0])
        return gradients[0], None, None


def _go_on(recorder: Recorder, before: str, stream: str, values: torch.Tensor) -> None:
    """As autograd and careful users do: the memory is not reused while the next stream still reads it."""
    recorder.order(stream, recorder.clock_of(before))
    recorder.keep(values.detach(), stream)
    recorder.switch(stream)


class Fork(nn.Module):
    """Two independent branches with parameters in the same buckets."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self.recorder = recorder
        self.left, self.right = nn.Linear(7, 9), nn.Linear(7, 9)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self._on("left", self.left, x) + self._on("right", self.right, x)

    def _on(self, stream: str, branch: nn.Module, x: torch.Tensor) -> torch.Tensor:
        recorder, before = self.recorder, self.recorder.stream
        _go_on(recorder, before, stream, x)
        return _Switch.apply(branch(x), recorder, before)

    def loss(self, step: int) -> torch.Tensor:
        x = torch.randn(5, 7, generator=batch_generator(step))
        self.recorder.adopt(x)
        loss = self(x).square().mean()
        loss.register_hook(self._backward_begins)
        return loss

    def _backward_begins(self, gradient: torch.Tensor) -> None:
        caller = self.recorder.stream

        def backward_ends() -> None:
            """The engine has the caller's stream wait for all others before it calls back."""
            for stream in ("left", "right"):
                self.recorder.order(caller, self.recorder.clock_of(stream))
            self.recorder.switch(caller)

        torch.autograd.Variable._execution_engine.queue_callback(backward_ends)
