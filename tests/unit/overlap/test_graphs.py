"""CUDA graphs: replays run without our waits, so a capture is noticed, or refused with what to do instead."""

from __future__ import annotations

from types import FunctionType

import pytest
from torch import nn

from weft.errors import OverlapError
from weft.overlap.device import HostDevice
from weft.overlap.graphs import Captures, check_not_captured


class Capturing(HostDevice):
    def capturing(self) -> bool:
        return True


def test_a_captured_backward_or_step_is_refused() -> None:
    with pytest.raises(OverlapError, match="make_graphed_callables"):
        Captures(Capturing()).refuse("backward()")
    Captures(HostDevice()).refuse("backward()")


@pytest.mark.parametrize(("num_steps", "settled", "advice"), [(0, True, "one training step"), (3, False, "flush")])
def test_a_capture_that_could_read_stale_parameters_is_refused(num_steps: int, settled: bool, advice: str) -> None:
    with pytest.raises(OverlapError, match=advice):
        Captures(Capturing()).read("weight", num_steps, settled)


def test_step_waits_for_gathers_once_a_graph_reads_parameters() -> None:
    captures = Captures(Capturing())
    captures.read("weight", 3, True)
    assert captures.seen
    outside = Captures(HostDevice())
    outside.read("weight", 3, True)
    assert not outside.seen


def test_a_module_captured_before_its_memory_moves_is_refused() -> None:
    module = nn.Linear(2, 2)
    check_not_captured("linear", module)
    replay = FunctionType((lambda x: x).__code__, {"__name__": "torch.cuda.graphs"})
    module.forward = replay
    with pytest.raises(OverlapError, match="captured in a CUDA graph"):
        check_not_captured("linear", module)
