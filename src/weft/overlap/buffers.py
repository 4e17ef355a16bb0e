"""Buffers (BatchNorm's running averages): rank 0's values are copied to all workers once per round, as DDP does.

They are sent when backward ends and written when the next forward begins.  They go ahead of the gathers: queued behind
them, they would arrive halfway through forward.  A buffer that this worker has written in the meantime
(``load_state_dict``, ``reset_running_stats``) keeps its value.

[Note: layout]  A message has the size on which all workers have agreed, even if the buffers have changed since.  A
worker whose buffers have changed in shape, dtype, or name sends an objection with its gradients (``Round``), so that
all workers learn of it in the same step; then all of them compare their buffers, and adopt the new layout or raise.
Until then, a message that rank 0 could not fill is marked as invalid.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from weft.errors import OverlapError
from weft.overlap import checks
from weft.overlap.first_values import as_bytes
from weft.overlap.timing import StepClock
from weft.overlap.transport.base import Transport
from weft.process.turns import TURNS

Layout = tuple[tuple[str, tuple[int, ...], torch.dtype], ...]

_HEADER_BYTES = 16  # a multiple of any dtype's size, so that the values can be viewed in place
_VALID = 1


@dataclass(frozen=True, slots=True)
class _Message:
    packed: torch.Tensor
    work: Any
    buffers: dict[str, torch.Tensor]
    versions: list[int]
    stream: Any


class BufferSync:
    """Packs all buffers into one message."""

    def __init__(
        self,
        model: torch.nn.Module,
        transport: Transport,
        clock: StepClock,
        group: dist.ProcessGroup,
        *,
        enabled: bool,
        ignored: Collection[str],
    ) -> None:
        self.enabled = enabled
        self._ignored = ignored
        self._model = model
        self._transport = transport
        self._clock = clock
        self._group = group
        self._message: _Message | None = None
        self._layout = _layout(self._buffers())

    @property
    def in_flight(self) -> bool:
        return self._message is not None

    def changed(self) -> bool:
        """Whether this worker's buffers no longer have the agreed layout."""
        return self.enabled and _layout(self._buffers()) != self._layout

    @torch.no_grad()
    def launch(self) -> None:
        """Send the buffers of this round.  Collective."""
        self.finish()  # there may have been no forward since the last message, and there is only one at a time
        if not self.enabled:
            return
        buffers = self._buffers()
        changed = _layout(buffers) != self._layout
        if changed and self._transport.ordered:
            raise OverlapError(
                f"buffers changed in shape, dtype, or name since weft.overlap was called "
                f"({self._difference(buffers)}); "
                "the other workers cannot be notified on this device: keep the buffers unchanged, or call detach() "
                "before such a change and weft.overlap after it"
            )
        if self._layout and self._transport.num_workers > 1:
            self._send(buffers, valid=not changed)

    @torch.no_grad()
    def finish(self) -> None:
        """Write the values in flight into the buffers."""
        message, self._message = self._message, None
        if message is None:
            return
        device = self._transport.device
        # On the stream it was packed on, whichever stream forward runs on: that one joins it below.
        with device.on_stream(message.stream):
            with TURNS.yielded(later=True), self._clock.waiting("buffers"):
                message.work.wait()
            self._put(message)
        device.join(message.stream)

    def _put(self, message: _Message) -> None:
        if self._transport.rank == 0 or not (self._transport.ordered or message.packed[0] == _VALID):
            return
        now = self._buffers()
        versions = dict(zip(message.buffers, message.versions, strict=True))
        _unpack(
            message.packed[_HEADER_BYTES:],
            message.buffers,
            lambda name, buffer: now.get(name) is buffer and buffer._version == versions[name],
        )

    def forget(self) -> None:
        """Let the message in flight arrive, and discard it."""
        if self._message is not None:
            self._message.work.wait()
            self._message = None

    @torch.no_grad()
    def share(self, group: dist.ProcessGroup, source: int) -> None:
        """Copy one worker's buffers to all, now, over a gloo group.  Collective."""
        buffers = self._buffers()
        if buffers and self.enabled:
            packed = torch.cat([as_bytes(buffer).cpu() for buffer in buffers.values()])
            dist.broadcast(packed, group_src=source, group=group)
            _unpack(packed, buffers, lambda name, buffer: True)

    def agree(self) -> None:
        """After a worker's buffers have changed: adopt the new layout if all workers have it, or raise.  Collective."""
        self.finish()
        buffers = self._buffers()
        lines = [f"buffer {name} {shape} {dtype}" for name, shape, dtype in _layout(buffers)]
        with TURNS.yielded(later=True):
            checks.check_alike(self._group, self._device(), lines, None)
        self._layout = _layout(buffers)
        self.launch()

    def _send(self, buffers: dict[str, torch.Tensor], valid: bool) -> None:
        device = self._device()
        num_bytes = _HEADER_BYTES + sum(torch.Size(s).numel() * t.itemsize for _, s, t in self._layout)
        packed = torch.zeros(num_bytes, dtype=torch.uint8, device=device)
        if self._transport.rank == 0 and valid:
            packed[0] = _VALID
            torch.cat([as_bytes(buffer).to(device) for buffer in buffers.values()], out=packed[_HEADER_BYTES:])
        kept = buffers if valid else {}
        versions = [buffer._version for buffer in kept.values()]
        self._message = _Message(
            packed, self._transport.broadcast(packed), kept, versions, self._transport.device.current_stream()
        )

    def _device(self) -> torch.device:
        return next(self._model.parameters()).device

    def _buffers(self) -> dict[str, torch.Tensor]:
        """Looked up each time: ``self.average = 0.9 * self.average + ...`` replaces the tensor."""
        named = [(name, buffer) for name, buffer in self._model.named_buffers() if name not in self._ignored]
        # Large dtypes first, so that each buffer begins at a multiple of its dtype's size.
        return dict(sorted(named, key=lambda item: -item[1].dtype.itemsize))

    def _difference(self, buffers: dict[str, torch.Tensor]) -> str:
        before, now = set(self._layout), set(_layout(buffers))
        return ", ".join(sorted(name for name, *_ in before ^ now)[:1])


def _unpack(
    packed: torch.Tensor, buffers: dict[str, torch.Tensor], wanted: Callable[[str, torch.Tensor], bool]
) -> None:
    start = 0
    for name, buffer in buffers.items():
        stop = start + buffer.numel() * buffer.element_size()
        if wanted(name, buffer):
            # As in DDP: a graph that has saved the buffer may still run backward.
            with torch.autograd.grad_mode._unsafe_preserve_version_counter(buffer):
                buffer.copy_(packed[start:stop].view(buffer.dtype).view(buffer.shape))
        start = stop


def _layout(buffers: dict[str, torch.Tensor]) -> Layout:
    return tuple((name, tuple(buffer.shape), buffer.dtype) for name, buffer in buffers.items())
