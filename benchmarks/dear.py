"""DeAR as its paper describes it, as a rival: gradients are reduce-scattered under backward and gathered
under the next forward, one bucket ahead; a bucket is updated just before its first layer runs.

The idea is the paper's (arXiv 2302.12445); this code is ours, written from the abstract's description, with
fixed 25 MB buckets and the same transport that weft has.  Update and optimizer state are replicated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor, nn

from benchmarks.chunked_transport import AllGather, ReduceScatter, padded_size

BUCKET_BYTES = 25 * 1024 * 1024


@dataclass
class _Bucket:
    """Consecutive parameters in the order of backward, with everything that happens to them in one step."""

    parameters: list[nn.Parameter]
    optimizer: torch.optim.Optimizer
    gradients: Tensor
    shard: Tensor
    slots: dict[nn.Parameter, Tensor] = field(default_factory=dict)
    num_ready: int = 0
    reduce_scatter: ReduceScatter | None = None
    all_gather: AllGather | None = None
    is_stale: bool = False


class Dear:
    """Trains in place: ``step()`` where the loop has ``optimizer.step()``, ``drain()`` at the end."""

    def __init__(
        self,
        model: nn.Module,
        make_optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer],
        *,
        bucket_bytes: int = BUCKET_BYTES,
    ) -> None:
        scatter_group, gather_group = dist.new_group(), dist.new_group()
        if scatter_group is None or gather_group is None:
            raise RuntimeError("every rank must be part of the groups of DeAR")
        self._scatter_group, self._gather_group = scatter_group, gather_group
        self._buckets = [
            self._make_bucket(parameters, make_optimizer) for parameters in _split(model, bucket_bytes)
        ]
        self._bucket_of = {
            parameter: index for index, bucket in enumerate(self._buckets) for parameter in bucket.parameters
        }
        for parameter in self._bucket_of:
            parameter.register_post_accumulate_grad_hook(self._gradient_ready)  # type: ignore[no-untyped-call]
        for module in model.modules():
            own = sorted(
                {self._bucket_of[p] for p in module.parameters(recurse=False) if p in self._bucket_of}
            )
            if own:
                module.register_forward_pre_hook(self._before_forward(own))

    def step(self) -> None:
        """End of backward: all shards are summed, the first layer's bucket starts to be gathered."""
        for bucket in self._buckets:
            if bucket.reduce_scatter is None:
                self._scatter(bucket)
        for bucket in self._buckets:
            if bucket.reduce_scatter is not None:
                bucket.reduce_scatter.wait(bucket.shard)
            bucket.reduce_scatter, bucket.num_ready, bucket.is_stale = None, 0, True
        self._gather(len(self._buckets) - 1)

    def drain(self) -> None:
        """Finish the last step: gather and update what no forward has asked for yet."""
        for index in reversed(range(len(self._buckets))):
            self._refresh(index)

    def state_tensors(self) -> list[Tensor]:
        return [
            value
            for bucket in self._buckets
            for state in bucket.optimizer.state.values()
            for value in state.values()
            if isinstance(value, Tensor)
        ]

    def _make_bucket(
        self,
        parameters: list[nn.Parameter],
        make_optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer],
    ) -> _Bucket:
        num_workers = self._scatter_group.size()
        dtype = parameters[0].dtype
        size = padded_size(sum(p.numel() for p in parameters), num_workers)
        gradients, shard = torch.zeros(size, dtype=dtype), torch.empty(size // num_workers, dtype=dtype)
        bucket = _Bucket(parameters, make_optimizer(parameters), gradients, shard)
        start = 0
        for parameter in parameters:
            bucket.slots[parameter] = gradients[start : start + parameter.numel()].view_as(parameter)
            start += parameter.numel()
        return bucket

    def _gradient_ready(self, parameter: Tensor) -> None:
        if not isinstance(parameter, nn.Parameter) or parameter.grad is None:
            return
        bucket = self._buckets[self._bucket_of[parameter]]
        bucket.slots[parameter].copy_(parameter.grad)
        parameter.grad = None
        bucket.num_ready += 1
        if bucket.num_ready == len(bucket.parameters):
            self._scatter(bucket)

    def _scatter(self, bucket: _Bucket) -> None:
        bucket.reduce_scatter = ReduceScatter(bucket.gradients, self._scatter_group)

    def _gather(self, index: int) -> None:
        bucket = self._buckets[index]
        if bucket.is_stale and bucket.all_gather is None:
            bucket.all_gather = AllGather(bucket.gradients, bucket.shard, self._gather_group)

    def _before_forward(self, indices: list[int]) -> Callable[[nn.Module, object], None]:
        def refresh(module: nn.Module, args: object) -> None:
            for index in reversed(indices):
                self._refresh(index)

        return refresh

    def _refresh(self, index: int) -> None:
        """Make the parameters of a bucket current; the next bucket of the forward travels meanwhile."""
        bucket = self._buckets[index]
        if not bucket.is_stale:
            return
        self._gather(index)
        if index > 0:
            self._gather(index - 1)
        if bucket.all_gather is not None:
            bucket.all_gather.wait()
        bucket.all_gather, bucket.is_stale = None, False
        for parameter, gradient in bucket.slots.items():
            parameter.grad = gradient
        bucket.optimizer.step()
        bucket.optimizer.zero_grad(set_to_none=True)


def _split(model: nn.Module, bucket_bytes: int) -> list[list[nn.Parameter]]:
    """Parameters in reverse order of definition, cut where the next one would not fit any more."""
    buckets: list[list[nn.Parameter]] = []
    room_bytes = 0
    for parameter in reversed([p for p in model.parameters() if p.requires_grad]):
        num_bytes = parameter.numel() * parameter.element_size()
        if not buckets or num_bytes > room_bytes:
            buckets.append([])
            room_bytes = bucket_bytes
        buckets[-1].append(parameter)
        room_bytes -= num_bytes
    return buckets
