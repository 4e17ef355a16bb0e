"""The gradient noise of a real model is measured correctly, whatever the script does with its gradients."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

import weft
from weft.worker.noise_meter import NoiseMeter
from weft.worker.sampling import share_of
from weft.worker.weighting import UpdateCount
from workers import on_workers

WIDTH = 1000
TRUE_SCALE = 100.0
"""Samples have a variance of 1 in each of 1000 dimensions, and their mean has a squared norm of 10."""
BATCH = 32


class Mean(nn.Module):
    """The gradient of its loss is the mean of its samples."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x @ self.weight).mean()


def noise_of(wrap: str, *, clip: bool = False, scale: float = 1.0, accumulate: int = 1, steps: int = 480) -> Any:
    """What a training loop with these habits measures, and what it was told."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    inner = Mean()
    model: nn.Module = inner
    optimizer = torch.optim.SGD(inner.parameters(), lr=1e-6)
    if wrap.startswith("overlap"):
        weft.overlap(model, optimizer, tune=False, eager=wrap == "overlap, eager")
    elif wrap == "ddp":
        model = nn.parallel.DistributedDataParallel(inner)
    told: list[str] = []
    updates = UpdateCount([optimizer])
    meter = NoiseMeter([model], world_size, updates, told.append)
    draw = torch.Generator().manual_seed(rank)
    share = share_of(BATCH, rank, world_size)
    for step in range(steps):
        meter.before_step(share)
        x = 0.1 + torch.randn(share.num_samples, WIDTH, generator=draw)
        whole = (step + 1) % accumulate == 0
        (model(x) * scale).backward()
        if whole:
            if clip:
                nn.utils.clip_grad_norm_(inner.parameters(), 0.01)
            optimizer.step()
            optimizer.zero_grad()
        meter.after_step(share)
    meter.close()
    updates.close()
    return meter.noise, told


@pytest.mark.parametrize("wrap", ["overlap", "ddp"])
@on_workers(2)
def test_the_noise_is_that_of_the_samples(wrap: str) -> None:
    noise, told = noise_of(wrap)
    assert noise.num_measured == 60
    assert noise.samples == pytest.approx(TRUE_SCALE, rel=0.3)
    assert told == []


@pytest.mark.parametrize("wrap", ["overlap", "ddp"])
@on_workers(2)
def test_neither_clipping_nor_a_loss_scale_changes_what_is_measured(wrap: str) -> None:
    plain, clipped, scaled = noise_of(wrap)[0], noise_of(wrap, clip=True)[0], noise_of(wrap, scale=1024.0)[0]
    assert clipped.samples == pytest.approx(plain.samples, rel=1e-3)
    assert scaled.samples == pytest.approx(plain.samples, rel=1e-3)


@on_workers(2)
def test_gradients_that_are_accumulated_are_left_alone() -> None:
    for wrap in ("overlap", "ddp"):
        noise, told = noise_of(wrap, accumulate=2, steps=40)
        assert (noise.num_measured, noise.samples, told) == (0, None, [])


@on_workers(2)
def test_a_run_that_cannot_be_measured_says_so_once() -> None:
    for wrap in ("overlap, eager", "by hand"):
        noise, told = noise_of(wrap, steps=40)
        assert noise.samples is None
        assert len(told) == 1, wrap
        assert "cannot be measured" in told[0]


@on_workers(2)
def test_measuring_leaves_no_trace_in_the_training() -> None:
    """The same updates, bit for bit, with and without a meter."""
    found = []
    for with_meter in (False, True):
        torch.manual_seed(0)
        inner = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
        optimizer = torch.optim.AdamW(inner.parameters(), lr=0.01)
        weft.overlap(inner, optimizer, tune=False)
        updates = UpdateCount([optimizer])
        meter = NoiseMeter([inner], 2, updates, print) if with_meter else None
        draw = torch.Generator().manual_seed(dist.get_rank())
        share = share_of(8, dist.get_rank(), 2)
        for _ in itertools.repeat(None, 40):
            if meter:
                meter.before_step(share)
            inner(torch.randn(4, 8, generator=draw)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            if meter:
                meter.after_step(share)
        assert meter is None or meter.noise.num_measured == 5
        found.append([parameter.detach().clone() for parameter in inner.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))
