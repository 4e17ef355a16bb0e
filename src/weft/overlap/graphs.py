"""CUDA graphs are replayed without Python, and so without our waits and hooks.

Forward may be captured (``torch.cuda.make_graphed_callables`` leaves gradient accumulation outside the graph).  Its
replays read parameters unguarded; from then on, ``step()`` orders its stream behind all gathers, and nothing is hidden
under forward.  Capturing backward or step() is refused: its replays would not communicate with the other workers.
"""

from __future__ import annotations

import logging

from torch import nn

from weft.errors import OverlapError
from weft.overlap.device import Device

_log = logging.getLogger("weft.overlap")


class Captures:
    """Notices graph captures for one schedule."""

    def __init__(self, device: Device) -> None:
        self._device = device
        # Whether replays may read parameters unnoticed.
        self.seen = False

    def refuse(self, what: str) -> None:
        if self._device.capturing():
            raise OverlapError(
                f"{what} was called during a CUDA graph capture: its replays could not exchange gradients with the "
                "other workers; capture the model with torch.cuda.make_graphed_callables, which leaves this call out"
            )

    def read(self, name: str, num_steps: int, settled: bool) -> None:
        """A parameter is read; ``settled``: the host knows that its newest values have arrived."""
        if not self._device.capturing():
            return
        if not settled or not num_steps:
            todo = "handle.flush()" if num_steps else "one training step, and then handle.flush(),"
            raise OverlapError(
                f"{name} was read during a CUDA graph capture, which cannot wait for its newest values: call {todo} "
                "right before the capture"
            )
        if not self.seen:
            self.seen = True
            _log.warning("a CUDA graph reads parameters: step() now waits for all gathers, and none are hidden")


def check_not_captured(name: str, module: nn.Module) -> None:
    """A graph captured before parameters move would keep reading the old memory."""
    if getattr(module.__dict__.get("forward"), "__module__", "") == "torch.cuda.graphs":
        raise OverlapError(
            f"module {name} is captured in a CUDA graph, but weft.overlap moves its parameters: call weft.overlap "
            "first, do one training step, then handle.flush() and make_graphed_callables"
        )
