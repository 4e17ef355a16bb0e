"""The job of ``benchmarks/ray_overhead.py``: when each attempt began and took a step.

    python first_step_worker.py FOLDER

Every worker writes ``FOLDER/ATTEMPT.RANK.begun`` and ``.stepped`` with the machine's monotonic clock, the same one for
all processes, and ``.step_s`` with the median time of a step.
"""

# ruff: noqa: E402 - the first note comes before the imports, which are part of what is measured
from __future__ import annotations

import time

BEGAN_S = time.monotonic()

import itertools
import os
import statistics
import sys
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import weft

NUM_TIMED_STEPS = 200


def note(name: str, value: float) -> None:
    """Whole or not at all: the benchmark looks while we write."""
    path = Path(sys.argv[1], f"{os.environ['WEFT_ATTEMPT']}.{os.environ['RANK']}.{name}")
    aside = path.with_name(f".{path.name}")
    aside.write_text(str(value))
    aside.replace(path)


def main() -> None:
    note("begun", BEGAN_S)
    inputs = torch.randn(4096, 64, generator=torch.Generator().manual_seed(0))
    dataset = TensorDataset(inputs, inputs[:, 0].gt(0).long())
    ended_s: list[float] = []
    with weft.session() as run:
        model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 2))
        optimizer = torch.optim.AdamW(model.parameters())
        weft.overlap(model, optimizer)
        data = run.loader(dataset, batch_size=64)
        run.resume(model=model, optimizer=optimizer, data=data)
        for x, y in run.steps(data, epochs=1_000_000):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            ended_s.append(time.monotonic())
            if len(ended_s) == 1:
                note("stepped", ended_s[0])
            elif len(ended_s) == 2 * NUM_TIMED_STEPS:  # the first half is for warming up
                timed = ended_s[NUM_TIMED_STEPS:]
                note("step_s", statistics.median(after - before for before, after in itertools.pairwise(timed)))


if __name__ == "__main__":
    main()
