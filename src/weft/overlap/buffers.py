"""Buffers (BatchNorm's running averages): rank 0's values for everybody, once per step, as DDP does.

They leave after ``step()`` and are put in place when the next forward begins.
"""

from __future__ import annotations

from typing import Any

import torch

from weft.overlap.transport.base import Transport


class BufferSync:
    """Packs all buffers of a dtype into one message."""

    def __init__(self, model: torch.nn.Module, transport: Transport) -> None:
        self._transport = transport
        kinds: dict[torch.dtype, list[torch.Tensor]] = {}
        for buffer in model.buffers():
            kinds.setdefault(buffer.dtype, []).append(buffer)
        self._kinds = list(kinds.values())
        self._under_way: list[tuple[list[torch.Tensor], torch.Tensor, Any]] = []

    @torch.no_grad()
    def launch(self) -> None:
        for buffers in self._kinds:
            packed = torch.cat([buffer.reshape(-1) for buffer in buffers])
            self._under_way.append((buffers, packed, self._transport.broadcast(packed)))

    @torch.no_grad()
    def finish(self) -> None:
        for buffers, packed, work in self._under_way:
            work.wait()
            if self._transport.rank != 0:
                for buffer, values in zip(buffers, torch.split(packed, [b.numel() for b in buffers]), strict=True):
                    buffer.copy_(values.view_as(buffer))
        self._under_way.clear()
