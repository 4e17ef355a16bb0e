"""The job that ``benchmarks/restart.py`` stops and starts again: a small model that records when it did what.

Marks are seconds of the machine's monotonic clock, the same one for all processes.
"""

# ruff: noqa: E402 - the first mark comes before the imports, which are part of what is measured
from __future__ import annotations

import time

MARKS: dict[str, float] = {"script": time.monotonic()}  # before torch

import json
import os
import sys
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import weft

NUM_STEPS_BEFORE_STOP = 20


def mark(name: str) -> None:
    MARKS[name] = time.monotonic()


def main() -> None:
    file = Path(sys.argv[1])
    mark("imported")
    inputs = torch.randn(4096, 64, generator=torch.Generator().manual_seed(0))
    dataset = TensorDataset(inputs, inputs[:, 0].gt(0).long())
    try:
        with weft.session() as run:
            mark("joined")
            model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 2))
            optimizer = torch.optim.AdamW(model.parameters())
            weft.overlap(model, optimizer)
            data = run.loader(dataset, batch_size=64)
            run.resume(model=model, optimizer=optimizer, data=data)
            mark("loaded")
            for number, (x, y) in enumerate(run.steps(data, epochs=1_000_000)):
                optimizer.zero_grad()
                F.cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                mark("step")
                MARKS.setdefault("first_step", MARKS["step"])
                if number == NUM_STEPS_BEFORE_STOP:
                    print("running", flush=True)
            mark("saved")
    finally:
        file.with_name(f"{file.name}.{os.environ['RANK']}").write_text(json.dumps(MARKS))


if __name__ == "__main__":
    main()
