"""Two jobs of two workers each take turns on two devices: each gets the numbers it gets alone, and no job deadlocks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

import weft
from gates import FileGate, behind
from training import Parameters, Run, Tangle, Tower, adamw, assert_same, made, replicated_sgd, sgd, with_ddp, with_weft
from workers import gathered, on_workers

NUM_STEPS = 12


class Talking(nn.Module):
    """A collective in the middle of forward, as in SyncBatchNorm, and one in backward."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(7, 9), nn.Linear(9, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        middle = torch.tanh(self.first(x))
        mean = middle.detach().mean(0)
        dist.all_reduce(mean)
        middle.register_hook(self._average)
        return self.second(middle - mean / 2)

    def _average(self, gradient: torch.Tensor) -> torch.Tensor:
        gradient = gradient.clone()
        dist.all_reduce(gradient)
        return gradient / 2

    def loss(self, step: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(100 * step + dist.get_rank())
        return self(torch.randn(5, 7, generator=generator)).square().mean()


class PlainRun(Run):
    """Gradients averaged by the script itself, one at a time, after backward."""

    def train(self, steps: int, first: int = 0, accumulate: int = 1, clip: str = "") -> Run:
        for step in range(first, first + steps):
            loss = self.model.loss(step)
            loss.backward()
            for parameter in self.model.parameters():
                dist.all_reduce(parameter.grad)
                parameter.grad /= 2
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.losses.append(loss.item())
        return self


def plain() -> Run:
    torch.manual_seed(3)
    model = Talking()
    weft.crossover(model)
    return PlainRun(model, sgd(model))


def ddp() -> Run:
    run = with_ddp(made(Tangle), adamw, bucket_cap_mb=0.001)
    weft.crossover(run.ddp)
    return run


def overlapped(**options: Any) -> Callable[[], Run]:
    optimizer = options.pop("optimizer", adamw)
    return lambda: with_weft(made(Tangle), optimizer, **options)


KINDS: dict[str, Callable[[], Run]] = {
    "plain": plain,
    "ddp": ddp,
    "overlap": overlapped(),
    "eager": overlapped(eager=True),
    "replicated": overlapped(optimizer=replicated_sgd),
}


def enter_own_job(folder: Path) -> FileGate:
    """Workers 0 and 1 are one job, 2 and 3 the other; 0 and 2 share a device, 1 and 3 the other one."""
    job, host = divmod(dist.get_rank(), 2)
    dist.barrier()
    dist.destroy_process_group()
    dist.init_process_group("gloo", init_method=f"file://{folder}/job{job}", rank=host, world_size=2)
    return FileGate(folder, host)


def trained(make: Callable[[], Run], **how: Any) -> tuple[Run, Parameters]:
    run = make().train(NUM_STEPS, **how)
    state = run.state()
    if run.handle is not None:
        run.handle.detach()
    return run, state


@pytest.mark.parametrize("kind", KINDS)
@on_workers(4)
def test_jobs_that_take_turns_get_the_numbers_of_each_alone(kind: str, tmp_path: Path) -> None:
    gate = enter_own_job(tmp_path)
    alone, expected = trained(KINDS[kind])
    with behind(gate):
        shared, found = trained(KINDS[kind])
    assert_same(found, expected)
    assert shared.losses == alone.losses
    assert min(gathered(gate.num_turns)) > 1  # every worker has released its device and got it back
    gate.close()


@pytest.mark.parametrize("kind", ["ddp", "overlap"])
@on_workers(4)
def test_accumulation_and_clipping_are_unchanged_by_turns(kind: str, tmp_path: Path) -> None:
    gate = enter_own_job(tmp_path)
    how = {"accumulate": 2, "clip": "torch"}
    _, expected = trained(KINDS[kind], **how)
    with behind(gate):
        _, found = trained(KINDS[kind], **how)
    assert_same(found, expected)
    gate.close()


@pytest.mark.parametrize("kind", KINDS)
@on_workers(4)
def test_devices_granted_in_opposite_order_do_not_deadlock(kind: str, tmp_path: Path) -> None:
    # At the start, job A has device 0 and job B has device 1: a worker that waited while holding one would never end.
    gate = FileGate(tmp_path, dist.get_rank() % 2)
    if dist.get_rank() in (0, 3):
        gate.acquire()
    enter_own_job(tmp_path).close()
    with behind(gate):
        run, _ = trained(KINDS[kind])
    assert len(run.losses) == NUM_STEPS
    gate.close()


@on_workers(4)
def test_a_job_with_its_own_communication_hook_keeps_it(tmp_path: Path) -> None:
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

    gate = enter_own_job(tmp_path)
    expected = with_ddp(made(Tower), adamw)
    expected.ddp.register_comm_hook(None, fp16_compress_hook)
    expected.train(NUM_STEPS)
    with behind(gate):
        found = with_ddp(made(Tower), adamw)
        weft.crossover(found.ddp, comm_hook=fp16_compress_hook)
        found.train(NUM_STEPS)
    assert_same(found.state(), expected.state())
    gate.close()
