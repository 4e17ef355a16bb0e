"""Memory for the buckets of plan after plan.

Tuning tries many plans.  Were each bucket's buffers asked for on their own, those of one plan would not fit into the
holes that another one has left, and the process would grow with every trial.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

# Sums of buffers differ a little from plan to plan: parameters that are cut are counted in two buckets.
_SPARE = 1.02
_ALIGN = 64

Kind = tuple[torch.dtype, torch.device]
Allocate = Callable[[int, torch.dtype, torch.device], torch.Tensor]


def ordinary(num_elements: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    return torch.empty(num_elements, dtype=dtype, device=device)


class Arena:
    """One stretch of memory per dtype and device, handed out from the front; kept when the plan goes."""

    def __init__(self, allocate: Allocate = ordinary) -> None:
        self._allocate = allocate
        self._memory: dict[Kind, torch.Tensor] = {}
        self._num_used: dict[Kind, int] = {}

    def clear(self, sizes: dict[Kind, list[int]]) -> None:
        """Everything handed out is free again; there will be room for buffers of these sizes."""
        self._num_used = {}
        for kind, lengths in sizes.items():
            needed = sum(map(_padded, lengths))
            if kind not in self._memory or self._memory[kind].numel() < needed:
                self._memory.pop(kind, None)  # before there is a larger one
                self._memory[kind] = self._allocate(int(needed * _SPARE), *kind)

    def take(self, kind: Kind, length: int) -> torch.Tensor:
        """The next ``length`` elements; not zeroed, and memory nobody touches costs nothing."""
        start = self._num_used.get(kind, 0)
        self._num_used[kind] = start + _padded(length)
        return self._memory[kind][start : start + length]


def _padded(length: int) -> int:
    return -(-length // _ALIGN) * _ALIGN
