"""An Accelerate loop that the controller can stop, resume, and resize: docs/trainers.md.

weft run --workers 2 examples/trainer_accelerate.py
"""

import argparse

import torch
from accelerate import Accelerator
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import weft
from weft.integrations.accelerate import prepare

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=5)
options = parser.parse_args()

generator = torch.Generator().manual_seed(0)
inputs = torch.randn(4096, 20, generator=generator)
targets = (inputs[:, :3].prod(1) > 0).long()

with weft.session() as run:
    accelerator = Accelerator(cpu=run.device.type == "cpu")
    net = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))
    adamw = torch.optim.AdamW(net.parameters(), lr=3e-3)
    model, optimizer = prepare(accelerator, net, adamw)
    data = run.loader(TensorDataset(inputs, targets), batch_size=128)  # already split among the workers: not prepared
    run.resume(model=model, optimizer=adamw, data=data)
    for x, y in run.steps(data, epochs=options.epochs):
        loss = F.cross_entropy(model(x), y)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        run.log(loss=loss)
    if run.rank == 0:
        print(f"{'stopped' if run.stopped else 'done'} after step {run.step}, epoch {data.epoch}")
