# WEFT --workers 1:2
"""A small training job for docs/quickstart.md: two spirals, a session, and overlap.

weft submit examples/quickstart.py
"""

from __future__ import annotations

import math
import sys

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import weft

EPOCHS = int(sys.argv[1]) if len(sys.argv) > 1 else 40
along = torch.linspace(0.5, 3 * math.pi, 2560)
spiral = torch.arange(2560) % 2
angle = along + math.pi * spiral
points = torch.stack((along * angle.cos(), along * angle.sin()), dim=1) / 5

with weft.session(seed=0) as run:
    model = nn.Sequential(nn.Linear(2, 512), nn.GELU(), nn.Linear(512, 512), nn.GELU(), nn.Linear(512, 2))
    model = model.to(run.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    weft.overlap(model, optimizer, tune=False)
    data = run.loader(TensorDataset(points, spiral), batch_size=256)
    run.resume(model=model, optimizer=optimizer, data=data)
    for x, y in run.steps(data, epochs=EPOCHS):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        run.log(loss=loss)
    if run.rank == 0:
        print(f"step {run.step}: loss {loss.item():.3f}")
