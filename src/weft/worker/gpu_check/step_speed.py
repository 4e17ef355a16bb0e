"""Memory, exposed communication, and step time, compared with DDP and FSDP2 in the same processes."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from weft.worker.gpu_check.exactness import MAX_RELATIVE_DIFFERENCE, OPTIMIZERS, Row, Training
from weft.worker.gpu_check.models import Model, Transformer

NUM_WARM_UP = 10
NUM_TIMED = 30
# weft needs at most this many steps to find its plan.
NUM_TUNING = 70


class Fsdp2(Training):
    """FSDP2 with one unit per layer; parameters stay gathered after forward."""

    def __init__(self, make: Callable[[], Model], device: torch.device) -> None:
        torch.manual_seed(3)
        self.model = make().to(device)
        self.device = device
        self.handle = None
        self._ddp = None
        mesh = init_device_mesh(device.type, (dist.get_world_size(),))
        for layer in getattr(self.model, "encoder").layers:  # noqa: B009
            fully_shard(layer, mesh=mesh, reshard_after_forward=False)
        fully_shard(self.model, mesh=mesh, reshard_after_forward=False)
        self.optimizer = OPTIMIZERS["adamw"](self.model)
        self._generator = torch.Generator().manual_seed(dist.get_rank())


def speed(device: torch.device, quick: bool) -> Iterator[Row]:
    make = partial(Transformer, 64, 2) if quick else partial(Transformer, 1024, 12, 16)
    times: dict[str, float] = {}
    losses: dict[str, float] = {}
    for name in ("ddp", "weft", "fsdp2"):
        training = _made(name, make, device)
        _reset_peak(device)
        for _ in range(NUM_WARM_UP):
            loss = training.step()
        losses[name] = _mean(loss)
        for _ in range(NUM_TUNING if name == "weft" and not quick else 0):
            training.step()
        step_s = _median_step_s(training, 3 if quick else NUM_TIMED)
        times[name] = step_s
        row: Row = {
            "check": "speed",
            "case": name,
            # Times can be compared only if all three train the same model on the same data.
            "ok": abs(losses[name] - losses["ddp"]) <= MAX_RELATIVE_DIFFERENCE * abs(losses["ddp"]),
            "loss": losses[name],
            "step_ms": step_s * 1e3,
            "peak_bytes": _peak_bytes(device),
            "found": f"{step_s * 1e3:.2f} ms per step, peak {_peak_bytes(device) >> 20} MiB, "
            f"loss {losses[name]:.6f} after {NUM_WARM_UP} steps",
        }
        if training.handle is not None:
            report = training.handle.report().as_dict()
            row["report"] = report
            share = report["exposed_s"] / report["step_s"] if report["step_s"] else 0.0
            row["found"] += f", {share:.0%} of the step is exposed communication"
            row["exposed_share"] = share
        yield row
        training.close()
        del training
    yield {
        "check": "speed",
        "case": "weft over ddp",
        "ok": True,
        "found": f"{times['ddp'] / times['weft']:.2f}x; fsdp2 {times['ddp'] / times['fsdp2']:.2f}x",
    }


def _made(name: str, make: Callable[[], Model], device: torch.device) -> Training:
    if name == "fsdp2":
        return Fsdp2(make, device)
    return Training(make, OPTIMIZERS["adamw"], device, overlapped=name == "weft")


def _mean(loss: torch.Tensor) -> float:
    dist.all_reduce(loss)
    return float(loss.item()) / dist.get_world_size()


def _median_step_s(training: Training, num_steps: int) -> float:
    """Median over blocks of the slowest worker's step time; nothing waits for the device inside a block."""
    blocks = []
    for _ in range(5):
        _synchronize(training.device)
        dist.barrier()
        began_s = time.perf_counter()
        for _ in range(num_steps):
            training.step()
        _synchronize(training.device)
        slowest = torch.tensor([(time.perf_counter() - began_s) / num_steps], device=training.device)
        dist.all_reduce(slowest, dist.ReduceOp.MAX)
        blocks.append(float(slowest.item()))
    return statistics.median(blocks)


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _reset_peak(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)


def _peak_bytes(device: torch.device) -> int:
    peak: Any = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else 0
    return int(peak)
