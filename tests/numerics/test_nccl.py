"""Two GPUs and NCCL: the same promises.  Skips elsewhere."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import nn

import weft
from training import adamw, sgd
from workers import on_workers

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available() or torch.cuda.device_count() < 2, reason="needs two GPUs with NCCL"
    ),
]


@pytest.mark.parametrize("eager", [False, True])
@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
@on_workers(2)
def test_two_gpus_get_ddp_numbers(optimizer: str, eager: bool) -> None:
    device = torch.device("cuda", dist.get_rank())
    torch.cuda.set_device(device)
    group = dist.new_group([0, 1], backend="nccl")
    make = {"sgd": sgd, "adamw": adamw}[optimizer]

    def trained(overlapped: bool) -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64)).to(device)
        made = make(model)
        forward: nn.Module = model
        if overlapped:
            weft.overlap(model, made, eager=eager, bucket_bytes=16 << 10, process_group=group)
        else:
            forward = nn.parallel.DistributedDataParallel(model, device_ids=[device.index], process_group=group)
        generator = torch.Generator().manual_seed(dist.get_rank())
        for _ in range(20):
            made.zero_grad()
            forward(torch.randn(8, 64, generator=generator).to(device)).square().mean().backward()
            made.step()
        return [p.detach().clone() for p in model.parameters()]

    for found, expected in zip(trained(True), trained(False), strict=True):
        assert torch.equal(found, expected)
