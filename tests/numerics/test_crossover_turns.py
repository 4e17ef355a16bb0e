"""Two jobs of two workers each take turns on two devices: the numbers of each alone, and nobody locks up."""

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
from training import Parameters, Run, Tangle, Tower, adamw, assert_same, made, sgd, with_ddp, with_weft
from workers import gathered, on_workers

NUM_STEPS = 12


class Unknown(torch.optim.SGD):
    """Not known to work element by element: gets the replicated update."""


def unknown(model: nn.Module) -> torch.optim.Optimizer:
    return Unknown(model.parameters(), lr=0.05)


class Talking(nn.Module):
    """A collective in the middle of forward, as SyncBatchNorm has, and one in backward."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(7, 9), nn.Linear(9, 3)
        self.group = group

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        middle = torch.tanh(self.first(x))
        mean = middle.detach().mean(0)
        dist.all_reduce(mean, group=self.group)
        middle.register_hook(self._average)
        return self.second(middle - mean / 2)

    def _average(self, gradient: torch.Tensor) -> torch.Tensor:
        gradient = gradient.clone()
        dist.all_reduce(gradient, group=self.group)
        return gradient / 2

    def loss(self, step: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(100 * step + dist.get_rank())
        return self(torch.randn(5, 7, generator=generator)).square().mean()


class PlainRun(Run):
    """Gradients averaged by the script itself, one after the other, when backward is over."""

    def train(self, steps: int, first: int = 0, accumulate: int = 1, clip: str = "") -> Run:
        group = self.model.group
        for step in range(first, first + steps):
            loss = self.model.loss(step)
            loss.backward()
            for parameter in self.model.parameters():
                dist.all_reduce(parameter.grad, group=group)
                parameter.grad /= 2
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.losses.append(loss.item())
        return self


def plain(group: dist.ProcessGroup) -> Run:
    torch.manual_seed(3)
    model = Talking(group)
    weft.crossover(model)
    return PlainRun(model, sgd(model))


def ddp(group: dist.ProcessGroup) -> Run:
    run = with_ddp(made(Tangle), adamw, process_group=group, bucket_cap_mb=0.001)
    weft.crossover(run.ddp)
    return run


def overlapped(**options: Any) -> Callable[[dist.ProcessGroup], Run]:
    optimizer = options.pop("optimizer", adamw)
    return lambda group: with_weft(made(Tangle), optimizer, process_group=group, **options)


KINDS: dict[str, Callable[[dist.ProcessGroup], Run]] = {
    "plain": plain,
    "ddp": ddp,
    "overlap": overlapped(),
    "eager": overlapped(eager=True),
    "replicated": overlapped(optimizer=unknown),
}


def own_group() -> dist.ProcessGroup:
    """Ranks 0 and 1 are one job, 2 and 3 the other; 0 and 2 share a device, 1 and 3 the other one."""
    groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    return groups[dist.get_rank() // 2]


def trained(make: Callable[[dist.ProcessGroup], Run], group: dist.ProcessGroup, **how: Any) -> tuple[Run, Parameters]:
    run = make(group).train(NUM_STEPS, **how)
    state = run.state()
    if run.handle is not None:
        run.handle.detach()
    return run, state


@pytest.mark.parametrize("kind", KINDS)
@on_workers(4)
def test_jobs_that_take_turns_get_the_numbers_of_each_alone(kind: str, tmp_path: Path) -> None:
    group = own_group()
    alone, expected = trained(KINDS[kind], group)
    gate = FileGate(tmp_path, dist.get_rank() % 2)
    with behind(gate):
        shared, found = trained(KINDS[kind], group)
    assert_same(found, expected)
    assert shared.losses == alone.losses
    assert min(gathered(gate.num_turns)) > 1  # every worker has given its device away and got it back
    gate.close()


@pytest.mark.parametrize("kind", ["ddp", "overlap"])
@on_workers(4)
def test_accumulation_and_clipping_change_no_number_either(kind: str, tmp_path: Path) -> None:
    group = own_group()
    how = {"accumulate": 2, "clip": "torch"}
    _, expected = trained(KINDS[kind], group, **how)
    gate = FileGate(tmp_path, dist.get_rank() % 2)
    with behind(gate):
        _, found = trained(KINDS[kind], group, **how)
    assert_same(found, expected)
    gate.close()


@pytest.mark.parametrize("kind", KINDS)
@on_workers(4)
def test_devices_granted_in_opposite_order_lock_nobody_up(kind: str, tmp_path: Path) -> None:
    # Job A has device 0 and job B has device 1 when both begin: whoever waited with a device would wait for ever.
    group = own_group()
    gate = FileGate(tmp_path, dist.get_rank() % 2)
    goes_first = dist.get_rank() in (0, 3)
    if goes_first:
        gate.acquire()
    dist.barrier()
    with behind(gate):
        run, _ = trained(KINDS[kind], group)
    assert len(run.losses) == NUM_STEPS
    gate.close()


@on_workers(4)
def test_a_job_with_its_own_communication_hook_keeps_it(tmp_path: Path) -> None:
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook

    group = own_group()
    expected = with_ddp(made(Tower), adamw, process_group=group)
    expected.ddp.register_comm_hook(group, bf16_compress_hook)
    expected.train(NUM_STEPS)
    gate = FileGate(tmp_path, dist.get_rank() % 2)
    with behind(gate):
        found = with_ddp(made(Tower), adamw, process_group=group)
        weft.crossover(found.ddp, comm_hook=bf16_compress_hook, comm_state=group)
        found.train(NUM_STEPS)
    assert_same(found.state(), expected.state())
    gate.close()
