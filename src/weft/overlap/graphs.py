"""CUDA graphs: what was captured is replayed without Python, so without our waits and without our hooks.

Forward may be captured (``torch.cuda.make_graphed_callables`` leaves the accumulation of gradients outside the graph).
Its replays read parameters that nobody guards; from then on ``step()`` orders its stream behind all gathers, and
nothing is hidden under forward.  A captured backward or step would leave the other workers without this one: refused.
"""

from __future__ import annotations

import logging

from torch import nn

from weft.errors import OverlapError
from weft.overlap.device import Device

logger = logging.getLogger("weft.overlap")


class Captures:
    """What one schedule knows of graphs."""

    def __init__(self, device: Device) -> None:
        self._device = device
        # Whether replays may read parameters behind our back.
        self.seen = False

    def refuse(self, what: str) -> None:
        if self._device.capturing():
            raise OverlapError(
                f"{what} was called while a CUDA graph is captured: its replays could not exchange gradients with the "
                "other workers; capture the model with torch.cuda.make_graphed_callables, which leaves this outside"
            )

    def read(self, name: str, num_steps: int, settled: bool) -> None:
        """A parameter is read; ``settled``: the host knows that its newest values are there."""
        if not self._device.capturing():
            return
        if not settled or not num_steps:
            todo = "handle.flush()" if num_steps else "one training step, and then handle.flush(),"
            raise OverlapError(
                f"{name} is read while a CUDA graph is captured, which cannot wait for its newest values: call {todo} "
                "right before the capture"
            )
        if not self.seen:
            self.seen = True
            logger.warning("parameters are read in a CUDA graph: step() now waits for all gathers, none are hidden")


def check_not_captured(name: str, module: nn.Module) -> None:
    """A graph captured before parameters move to other memory would go on reading the old."""
    if getattr(module.__dict__.get("forward"), "__module__", "") == "torch.cuda.graphs":
        raise OverlapError(
            f"module {name} is captured in a CUDA graph, which reads its parameters where they are now: call "
            "weft.overlap first, do one training step, then handle.flush() and make_graphed_callables"
        )
