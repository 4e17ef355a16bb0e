"""All contenders, by name.  A contender owns a copy of the model and knows how to make one step.

To add one: write a function that returns a ``Trainer``, and add it to ``CONTENDERS``.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

import weft
from benchmarks.ddp_buckets import DEFAULT_CAPS_MB, MIB, caps_mb, tapered_sizes
from benchmarks.dear import Dear
from benchmarks.models import Batch, Workload
from weft.errors import UsageError
from weft.overlap.state_runs import export_runs


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Where the calling thread spent one step.  Zeroing gradients counts as update."""

    forward_s: float
    backward_s: float
    update_s: float


class Trainer:
    """The ordinary training loop, one step at a time.  This base class: a single worker, no communication."""

    def __init__(self, workload: Workload, module: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.workload = workload
        self.module = module
        self.optimizer = optimizer
        self.last = StepTimes(0.0, 0.0, 0.0)

    def step(self, batch: Batch) -> Tensor:
        """One step; the loss of this worker's batch."""
        started_s = time.perf_counter()
        loss = self.workload.criterion(self.module(batch[0]), batch[1])
        forward_s = time.perf_counter()
        loss.backward()  # type: ignore[no-untyped-call]
        backward_s = time.perf_counter()
        self.update()
        ended_s = time.perf_counter()
        self.last = StepTimes(forward_s - started_s, backward_s - forward_s, ended_s - backward_s)
        return loss.detach()

    def update(self) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad()

    def drain(self) -> None:
        """Finish communication that the last step left for the next one."""

    def is_tuned(self) -> bool:
        """Whether the contender has finished adapting itself, so that it may be timed."""
        return True

    def details(self) -> dict[str, Any]:
        """Details about this contender for the reader of the result."""
        return {}

    def state_tensors(self) -> list[Tensor]:
        """Optimizer state that this worker holds."""
        return [
            value for state in self.optimizer.state.values() for value in state.values() if isinstance(value, Tensor)
        ]

    def close(self) -> None:
        """Release what the contender holds besides memory."""


@dataclass(slots=True)
class Findings:
    """Findings of this row that later contenders use."""

    ddp_bucket_mb: float = 25.0
    """The best size for all buckets of DDP."""
    dear_bucket_mb: float = 25.0
    bucket_scale: float = 1.0
    """Of DDP's default buckets, for a model whose layers were scaled down."""
    weft_buckets: list[int] = field(default_factory=list)
    """Bytes of the buckets of weft's tuned plan, in the order of backward."""


def make_contender(name: str, workload: Workload, findings: Findings) -> Trainer:
    """Build a contender with a fresh model."""
    if name not in CONTENDERS:
        raise UsageError(f"there is no contender {name!r}: expected one of {', '.join(sorted(CONTENDERS))}")
    return CONTENDERS[name](workload, findings)


def _alone(workload: Workload) -> Trainer:
    model = workload.model()
    return Trainer(workload, model, workload.make_optimizer(model.parameters()))


def make_ddp(workload: Workload, **options: Any) -> Trainer:
    """DDP with the given options; with explicit bucket sizes, gradients are views of the buckets."""
    if options:
        options["gradient_as_bucket_view"] = True
    module = DistributedDataParallel(workload.model(), **options)
    return Trainer(workload, module, workload.make_optimizer(module.parameters()))


def _ddp(workload: Workload, findings: Findings) -> Trainer:
    if findings.bucket_scale == 1.0:
        return make_ddp(workload)
    return make_ddp(workload, bucket_cap_mb_list=[cap_mb * findings.bucket_scale for cap_mb in DEFAULT_CAPS_MB])


def _in_backward_order(workload: Workload) -> list[int]:
    parameters = [p for p in workload.model().parameters() if p.requires_grad]
    return [p.numel() * p.element_size() for p in reversed(parameters)]


def _ddp_list(workload: Workload, findings: Findings) -> Trainer:
    """A list of sizes: DDP's best one for the body, smaller ones at both ends."""
    sizes = _in_backward_order(workload)
    wanted = tapered_sizes(sum(sizes), round(findings.ddp_bucket_mb * MIB))
    return make_ddp(workload, bucket_cap_mb_list=caps_mb(wanted, sizes))


def _ddp_plan(workload: Workload, findings: Findings) -> Trainer:
    """DDP with the buckets of weft's tuned plan."""
    if not findings.weft_buckets:
        raise UsageError("ddp_plan follows weft's plan: it needs weft in the same row")
    return make_ddp(workload, bucket_cap_mb_list=caps_mb(findings.weft_buckets, _in_backward_order(workload)))


class Fsdp2Trainer(Trainer):
    """FSDP2 keeps parameters gathered after forward, as ``reshard_after_forward=False`` asks."""

    def state_tensors(self) -> list[Tensor]:
        return [value.to_local() if isinstance(value, DTensor) else value for value in super().state_tensors()]


def _make_fsdp2(workload: Workload, *, is_async: bool) -> Trainer:
    model = workload.model()
    mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),))
    blocks = workload.blocks(model)
    for block in blocks:
        fully_shard(block, mesh=mesh, reshard_after_forward=False)
    fully_shard(model, mesh=mesh, reshard_after_forward=False)
    if is_async and isinstance(model, FSDPModule):
        # Asynchronous gathers overlap only when asked for ahead of time; two ahead, as its tutorial has it.
        model._set_unshard_async_op(True)
        units: list[FSDPModule] = [unit for unit in (model, *blocks) if isinstance(unit, FSDPModule)]
        for index, unit in enumerate(units):
            unit.set_modules_to_forward_prefetch(units[index + 1 : index + 3])
    return Fsdp2Trainer(workload, model, workload.make_optimizer(model.parameters()))


class DearTrainer(Trainer):
    """DeAR has its own optimizers, one per bucket."""

    def __init__(self, workload: Workload, bucket_mb: float) -> None:
        model = workload.model()
        self.dear = Dear(model, workload.make_optimizer, bucket_bytes=round(bucket_mb * MIB))
        super().__init__(workload, model, torch.optim.SGD([torch.zeros(1)]))

    def update(self) -> None:
        self.dear.step()

    def drain(self) -> None:
        self.dear.drain()

    def state_tensors(self) -> list[Tensor]:
        return self.dear.state_tensors()

    def close(self) -> None:
        self.dear.close()


class WeftTrainer(Trainer):
    """``weft.overlap`` with the given options."""

    def __init__(self, workload: Workload, **options: Any) -> None:
        model = workload.model()
        super().__init__(workload, model, workload.make_optimizer(model.parameters()))
        self.handle = weft.overlap(model, self.optimizer, **options)

    def drain(self) -> None:
        self.handle.flush()

    def is_tuned(self) -> bool:
        return bool(self.handle.report().tuned)

    def details(self) -> dict[str, Any]:
        return {"plan": self.handle.report().plan}

    def bucket_bytes(self) -> list[int]:
        """Bucket sizes of the current plan, in the order of backward."""
        regions = (bucket.exchange.region for bucket in self.handle.schedule.buckets)
        return [region.numel() * region.element_size() for region in regions]

    def state_tensors(self) -> list[Tensor]:
        # What this worker holds: reading `optimizer.state` would bring the other workers' shards.
        updates = getattr(self.handle.schedule, "updates", None)
        return super().state_tensors() if updates is None else [run.values for run in export_runs(updates)]

    def close(self) -> None:
        self.handle.detach()


CONTENDERS: dict[str, Callable[[Workload, Findings], Trainer]] = {
    "alone": lambda workload, _: _alone(workload),
    "ddp": _ddp,
    "ddp_best": lambda workload, findings: make_ddp(workload, bucket_cap_mb=findings.ddp_bucket_mb),
    "ddp_list": _ddp_list,
    "ddp_plan": _ddp_plan,
    "fsdp2": lambda workload, _: _make_fsdp2(workload, is_async=False),
    "fsdp2_async": lambda workload, _: _make_fsdp2(workload, is_async=True),
    "dear": lambda workload, findings: DearTrainer(workload, findings.dear_bucket_mb),
    "weft": lambda workload, _: WeftTrainer(workload),
    "weft_eager": lambda workload, _: WeftTrainer(workload, eager=True),
}
