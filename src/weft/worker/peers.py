"""Small messages among all workers.

Everything here is a collective: every worker calls it, in the same order.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from weft.errors import SessionError
from weft.overlap.checks import gathered_values


class Peers:
    """All workers of the job, over a group that carries CPU tensors; no group at all when alone."""

    def __init__(self, rank: int, world_size: int, group: dist.ProcessGroup | None) -> None:
        self.rank = rank
        self.world_size = world_size
        self.group = group

    def on_new_group(self) -> Peers:
        """The same workers on a new group, for another thread."""
        if self.world_size == 1:
            return self
        return Peers(self.rank, self.world_size, dist.new_group(backend="gloo"))

    def all_gather(self, value: Any) -> list[Any]:
        """Every worker's value, by rank."""
        if self.world_size == 1:
            return [value]
        try:
            return gathered_values(self.group, torch.device("cpu"), value)
        except RuntimeError as error:
            raise SessionError(_lost(self.rank, error)) from error

    def maximum(self, values: torch.Tensor) -> torch.Tensor:
        """Element-wise over all workers, in place; with two or more."""
        try:
            dist.all_reduce(values, dist.ReduceOp.MAX, group=self.group)
        except RuntimeError as error:
            raise SessionError(_lost(self.rank, error)) from error
        return values

    def maximum_later(self, values: torch.Tensor) -> Any:
        """Like :meth:`maximum`, but asynchronous: call ``wait()`` on the result."""
        return dist.all_reduce(values, dist.ReduceOp.MAX, group=self.group, async_op=True)


def _lost(rank: int, error: Exception) -> str:
    return (
        f"worker {rank} waited for another worker that did not answer ({error}): it has ended, failed, or hung; look "
        "for the first error in the other workers' output"
    )
