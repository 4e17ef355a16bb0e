"""A timed device: layers that take a set time without using the core, like an accelerator's.

Parameters, gradients, and therefore communication are real; only the arithmetic is replaced by waiting.  So eight hosts
fit on two cores, which real models would overload.  Rows measured with it say so (``emulated_compute``).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

# The host thread of a real accelerator queues work ahead, so waking up a little late idles no device.
# A longer absence (waiting for a gradient or a parameter) does.
QUEUE_SLACK_S = 1e-3


class TimedDevice:
    """Runs one operation at a time, each for a set time; the caller sleeps meanwhile."""

    def __init__(self) -> None:
        self._free_at_s = 0.0

    def occupy(self, duration_s: float) -> None:
        """Return when the device has worked for ``duration_s`` more."""
        now_s = time.perf_counter()
        start_s = self._free_at_s if now_s - self._free_at_s < QUEUE_SLACK_S else now_s
        self._free_at_s = start_s + duration_s
        if self._free_at_s > now_s:
            time.sleep(self._free_at_s - now_s)


class _TimedFunction(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, device: TimedDevice, forward_s: float, backward_s: float
    ) -> Tensor:
        ctx.save_for_backward(weight)
        ctx.device, ctx.backward_s = device, backward_s
        device.occupy(forward_s)
        # The output depends on the weights, so that a parameter read too early shows in the loss.
        return 0.5 * x + weight[: x.numel()].view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        (weight,) = ctx.saved_tensors
        (grad,) = grads
        ctx.device.occupy(ctx.backward_s)
        return 0.5 * grad, torch.full_like(weight, float(grad.sum())), None, None, None


class TimedLayer(nn.Module):
    """One layer with ``num_elements`` parameters and set times."""

    def __init__(self, num_elements: int, device: TimedDevice, forward_s: float, backward_s: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(num_elements) * 0.02)
        self.device = device
        self.forward_s = forward_s
        self.backward_s = backward_s

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = _TimedFunction.apply(x, self.weight, self.device, self.forward_s, self.backward_s)  # type: ignore[no-untyped-call]
        return result


class TimedModel(nn.Module):
    """Layers one after the other: elements, forward and backward seconds of each."""

    def __init__(self, layers: Sequence[tuple[int, float, float]], device: TimedDevice | None = None) -> None:
        super().__init__()
        device = device or TimedDevice()
        self.layers = nn.ModuleList(
            TimedLayer(num_elements, device, forward_s, backward_s) for num_elements, forward_s, backward_s in layers
        )

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x
