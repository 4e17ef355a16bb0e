"""The flat memory that parameters live in while weft overlaps them.

The parameter objects stay; only the memory behind them moves, so that a gather writes straight into them
and nothing is copied on the way.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from weft.overlap.layout import Lane, make_lane


class FlatMemory:
    """One buffer per dtype and device, parameters in ``order`` (that in which gradients become ready)."""

    def __init__(self, parameters: Sequence[torch.nn.Parameter], order: Sequence[int], num_workers: int) -> None:
        self._parameters = parameters
        self.order = tuple(order)
        kinds: dict[tuple[torch.dtype, torch.device], list[int]] = {}
        for number in order:
            kinds.setdefault((parameters[number].dtype, parameters[number].device), []).append(number)
        self.lanes: list[Lane] = []
        self.buffers: list[torch.Tensor] = []
        # In an order of their own: cuts are kept per lane while the order of parameters changes.
        for (dtype, device), numbers in sorted(kinds.items(), key=str):
            sizes = [(number, parameters[number].numel()) for number in numbers]
            lane = make_lane(sizes, num_workers, dtype.itemsize)
            buffer = torch.zeros(lane.num_elements, dtype=dtype, device=device)
            for slot in lane.slots:
                _move(parameters[slot.parameter], buffer, slot.offset)
            self.lanes.append(lane)
            self.buffers.append(buffer)

    def release(self) -> None:
        """Give every parameter memory of its own again."""
        for number in self.order:
            parameter = self._parameters[number]
            parameter.data = parameter.data.clone(memory_format=torch.preserve_format)


def flat_view(tensor: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """``tensor`` as a line of elements in the memory order of ``like``.

    >>> weight = torch.zeros(2, 3).t()
    >>> flat_view(torch.tensor([[1, 2], [3, 4], [5, 6]]), like=weight).tolist()
    [1, 3, 5, 2, 4, 6]
    """
    if tensor.stride() != like.stride():
        tensor = torch.empty_strided(like.shape, like.stride(), dtype=tensor.dtype, device=tensor.device).copy_(tensor)
    return tensor.detach().as_strided((tensor.numel(),), (1,))


def _move(parameter: torch.nn.Parameter, buffer: torch.Tensor, offset: int) -> None:
    old = parameter.data
    stride = old.stride() if _is_dense(old) else torch.empty(old.shape, device="meta").stride()
    new = buffer.as_strided(old.shape, stride, offset)
    new.copy_(old)
    parameter.data = new


def _is_dense(tensor: torch.Tensor) -> bool:
    """Whether the elements fill one run of memory, each once, in whatever order."""
    expected = 1
    for size, stride in sorted(zip(tensor.shape, tensor.stride(), strict=True), key=lambda x: (x[1], x[0])):
        if size == 1:
            continue
        if stride != expected:
            return False
        expected *= size
    return True
