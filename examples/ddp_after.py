"""ddp_before.py with weft: it can be stopped, resized, and resumed. The "after" script of docs/sessions.md.

weft run --workers 2 examples/ddp_after.py
"""

import argparse

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import weft

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=5)
options = parser.parse_args()

generator = torch.Generator().manual_seed(0)
inputs = torch.randn(4096, 20, generator=generator)
targets = (inputs[:, :3].prod(1) > 0).long()
dataset = TensorDataset(inputs, targets)

with weft.session() as run:
    model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    weft.overlap(model, optimizer)
    data = run.loader(dataset, batch_size=128)
    run.resume(model=model, optimizer=optimizer, data=data)
    for x, y in run.steps(data, epochs=options.epochs):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        run.log(loss=loss)
        if run.rank == 0 and run.step % 32 == 0:
            print(f"step {run.step}: loss {loss.item():.3f}")
