"""A typical DistributedDataParallel script: the "before" script of docs/sessions.md.

torchrun --nproc-per-node 2 examples/ddp_before.py
"""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=5)
options = parser.parse_args()

generator = torch.Generator().manual_seed(0)
inputs = torch.randn(4096, 20, generator=generator)
targets = (inputs[:, :3].prod(1) > 0).long()
dataset = TensorDataset(inputs, targets)

dist.init_process_group("gloo")
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
model = DistributedDataParallel(model)
sampler = DistributedSampler(dataset)
data = DataLoader(dataset, batch_size=128 // dist.get_world_size(), sampler=sampler)
for epoch in range(options.epochs):
    sampler.set_epoch(epoch)
    for x, y in data:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
    if dist.get_rank() == 0:
        print(f"epoch {epoch}: loss {loss.item():.3f}")
dist.destroy_process_group()
