"""A job of the demo: an ordinary training script that takes a few seconds.

    python -m weft.demo.train --steps 120

It classifies points as belonging to one of two spirals.  The model is larger than the task needs, so that a step takes
long enough for a second worker to help.
"""

from __future__ import annotations

import argparse
import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import weft

BATCH_SIZE = 256
STEPS_PER_EPOCH = 20


def spirals(num_points: int, seed: int) -> TensorDataset:
    """Points along two spirals, labeled 0 and 1."""
    draw = torch.Generator().manual_seed(seed)
    along = torch.rand(num_points, generator=draw).sqrt() * 3 * math.pi
    spiral = torch.randint(0, 2, (num_points,), generator=draw)
    angle = along + math.pi * spiral
    points = torch.stack((along * angle.cos(), along * angle.sin()), dim=1) / 5
    return TensorDataset(points + 0.02 * torch.randn(points.shape, generator=draw), spiral)


class Net(nn.Module):
    """Three wide layers."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *(nn.Linear(2, width), nn.GELU(), nn.Linear(width, width), nn.GELU()),
            *(nn.Linear(width, width), nn.GELU(), nn.Linear(width, 2)),
        )

    def forward(self, points: Tensor) -> Tensor:
        spiral: Tensor = self.layers(points)
        return spiral


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    num_epochs = max(1, round(options.steps / STEPS_PER_EPOCH))
    with weft.session(seed=options.seed) as run:
        model = Net(options.width).to(run.device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        weft.overlap(model, optimizer, tune=False)
        data = run.loader(spirals(BATCH_SIZE * STEPS_PER_EPOCH, options.seed), batch_size=BATCH_SIZE)
        run.resume(model=model, optimizer=optimizer, data=data)
        for points, spiral in run.steps(data, epochs=num_epochs):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(points), spiral)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            run.log(loss=loss)


if __name__ == "__main__":
    main()
