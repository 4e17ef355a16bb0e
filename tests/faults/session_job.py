"""A real session whose parameters are its ledger: every sample of every epoch moves its own parameter by exactly -1.

    python session_job.py NUM_SAMPLES STEP_S FOLDER [NUM_EPOCHS]

``FOLDER`` gets a diary of starts and of the steps of each attempt that was not killed, and ``ledger-JOB.json``:
how often each sample of each epoch counts.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import weft

BATCH_SIZE = 4
num_samples, step_s, folder = int(sys.argv[1]), float(sys.argv[2]), Path(sys.argv[3])
num_epochs = int(sys.argv[4]) if len(sys.argv) > 4 else 1


class Ledger(nn.Module):
    """One parameter per sample and epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = nn.Parameter(torch.zeros(num_epochs * num_samples))

    def forward(self, samples: Tensor) -> Tensor:
        return self.seen[samples]


def main() -> None:
    job_id, attempt, rank = os.environ["WEFT_JOB_ID"], os.environ["WEFT_ATTEMPT"], os.environ["RANK"]

    def write(word: str, *more: object) -> None:
        with (folder / "diary").open("a") as diary:
            diary.write(" ".join(map(str, (word, job_id, attempt, rank, *more))) + "\n")

    write("start")
    num_steps, last_size = 0, num_samples % BATCH_SIZE or BATCH_SIZE
    with weft.session(seed=0) as run:
        model = Ledger()
        # The gradient of a mean over the global batch is 1 / its size for each of its samples.
        optimizer = torch.optim.SGD(model.parameters(), lr=float(BATCH_SIZE))
        weft.overlap(model, optimizer, tune=False)
        data = run.loader(TensorDataset(torch.arange(num_samples)), batch_size=BATCH_SIZE)
        run.resume(model=model, optimizer=optimizer, data=data)
        for (samples,) in run.steps(data, epochs=num_epochs):
            time.sleep(step_s)
            optimizer.zero_grad()
            size = last_size if run.ends_epoch else BATCH_SIZE
            (size / BATCH_SIZE * model(run.epoch * num_samples + samples).mean()).backward()
            optimizer.step()
            run.log(loss=1.0)
            num_steps += 1
        write("steps", num_steps)
        counts = [round(-value, 3) for value in model.state_dict()["seen"].tolist()]
        if rank == "0" and all(counts):  # stopped before the end, it resumes later
            (folder / f"ledger-{job_id}.json").write_text(json.dumps(counts))


if __name__ == "__main__":
    main()
