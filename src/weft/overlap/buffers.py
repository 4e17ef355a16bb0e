"""Buffers (BatchNorm's running averages): rank 0's values for everybody, once per step, as DDP does.

They leave in ``step()``, before the gathers, behind whose bytes they would arrive when forward is half over, and are
put in place when the next forward begins.
"""

from __future__ import annotations

from typing import Any

import torch

from weft.core.turns import TURNS
from weft.overlap.timing import StepClock
from weft.overlap.transport.base import Transport


class BufferSync:
    """Packs all buffers of a dtype into one message."""

    def __init__(self, model: torch.nn.Module, transport: Transport, clock: StepClock) -> None:
        self._model = model
        self._transport = transport
        self._clock = clock
        self._under_way: list[tuple[list[str], torch.Tensor, Any]] = []

    @torch.no_grad()
    def launch(self) -> None:
        kinds: dict[torch.dtype, list[str]] = {}
        # By name, each time: `self.average = 0.9 * self.average + ...` puts a new tensor under the old name.
        buffers = dict(self._model.named_buffers())
        for name, buffer in buffers.items():
            kinds.setdefault(buffer.dtype, []).append(name)
        for names in kinds.values():
            packed = torch.cat([buffers[name].reshape(-1) for name in names])
            self._under_way.append((names, packed, self._transport.broadcast(packed)))

    @torch.no_grad()
    def finish(self) -> None:
        if not self._under_way:
            return
        buffers = dict(self._model.named_buffers())
        with TURNS.yielded(later=True), self._clock.waiting("buffers"):
            for _, _, work in self._under_way:
                work.wait()
        for names, packed, _ in self._under_way:
            if self._transport.rank != 0:
                parts = torch.split(packed, [buffers[name].numel() for name in names])
                for name, values in zip(names, parts, strict=True):
                    buffers[name].copy_(values.view_as(buffers[name]))
        self._under_way.clear()
