"""The flat memory in which parameters live while they are overlapped.

The parameter objects stay the same; only their memory moves, so that gathers write directly into them, without a copy.

[Note: own storage]  A slice of the buffer would expose the whole buffer through ``untyped_storage()``: ``torch.save``
of a submodule would write every parameter, and safetensors would refuse the model because its tensors share memory.  So
each parameter gets a storage that covers only its own elements and keeps the buffer alive.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch.utils.dlpack import from_dlpack

from weft.overlap.layout import Lane, keep_whole, make_lane

Cuts = Sequence[Sequence[int]]


class FlatMemory:
    """One buffer per dtype and device, with parameters in ``order`` (in which gradients become ready).

    With ``whole``, no shard cuts a parameter, so the location of parameters depends on the plan.  Plans are still made,
    compared, and described in terms of ``lanes``, where parameters follow each other in order.
    """

    def __init__(
        self, parameters: Sequence[torch.nn.Parameter], order: Sequence[int], num_workers: int, whole: bool = False
    ) -> None:
        self._parameters = parameters
        self._num_workers = num_workers
        self.order = tuple(order)
        self.whole = whole
        kinds: dict[tuple[torch.dtype, torch.device], list[int]] = {}
        for number in order:
            kinds.setdefault((parameters[number].dtype, parameters[number].device), []).append(number)
        self.lanes: list[Lane] = []
        self.buffers: list[torch.Tensor] = []
        # Sorted: cuts are kept per lane while the order of parameters changes.
        for (dtype, _), numbers in sorted(kinds.items(), key=str):
            sizes = [(number, parameters[number].numel()) for number in numbers]
            self.lanes.append(make_lane(sizes, num_workers, dtype.itemsize))
            if not whole:
                self.buffers.append(self._fill(self.lanes[-1]))

    def take_up(self, cuts: Cuts) -> tuple[Sequence[Lane], Cuts]:
        """Lay out the memory for a plan; returns the lanes, and the plan's cuts in them."""
        if not self.whole:
            return self.lanes, cuts
        placed = [
            keep_whole(lane, lane_cuts, self._num_workers) for lane, lane_cuts in zip(self.lanes, cuts, strict=True)
        ]
        self.buffers = [self._fill(lane) for lane, _ in placed]
        return [lane for lane, _ in placed], [lane_cuts for _, lane_cuts in placed]

    def _fill(self, lane: Lane) -> torch.Tensor:
        first = self._parameters[lane.slots[0].parameter]
        buffer = torch.zeros(lane.num_elements, dtype=first.dtype, device=first.device)
        for slot in lane.slots:
            _move(self._parameters[slot.parameter], buffer, slot.offset)
        return buffer

    def release(self) -> None:
        """Give every parameter its own memory again."""
        for number in self.order:
            parameter = self._parameters[number]
            parameter.data = parameter.data.clone(memory_format=torch.preserve_format)


def flat_view(tensor: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """``tensor`` as one dimension, in the memory order of ``like``.

    >>> weight = torch.zeros(2, 3).t()
    >>> flat_view(torch.tensor([[1, 2], [3, 4], [5, 6]]), like=weight).tolist()
    [1, 3, 5, 2, 4, 6]
    """
    if tensor.stride() != like.stride():
        tensor = torch.empty_strided(like.shape, like.stride(), dtype=tensor.dtype, device=tensor.device).copy_(tensor)
    return tensor.detach().as_strided((tensor.numel(),), (1,))


def carve(buffer: torch.Tensor, offset: int, shape: Sequence[int], stride: Sequence[int]) -> torch.Tensor:
    """Elements of ``buffer`` as a tensor with its own storage over the same memory; see [Note: own storage].

    >>> buffer = torch.zeros(8)
    >>> row = carve(buffer, 2, (3,), (1,)).fill_(1.0)
    >>> buffer.tolist(), row.untyped_storage().nbytes()
    ([0.0, 0.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0], 12)
    """
    line: torch.Tensor = from_dlpack(buffer[offset : offset + math.prod(shape)])
    return line.as_strided(shape, stride)


def _move(parameter: torch.nn.Parameter, buffer: torch.Tensor, offset: int) -> None:
    old = parameter.data
    stride = old.stride() if _is_dense(old) else torch.empty(old.shape, device="meta").stride()
    new = carve(buffer, offset, old.shape, stride)
    new.copy_(old)
    parameter.data = new


def _is_dense(tensor: torch.Tensor) -> bool:
    """Whether the elements fill one contiguous run of memory, in any order."""
    expected = 1
    for size, stride in sorted(zip(tensor.shape, tensor.stride(), strict=True), key=lambda x: (x[1], x[0])):
        if size == 1:
            continue
        if stride != expected:
            return False
        expected *= size
    return True
