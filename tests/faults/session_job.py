"""A real session whose parameters are its ledger: every sample moves its own parameter by exactly -1.

python session_job.py NUM_SAMPLES STEP_S FOLDER
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


class Ledger(nn.Module):
    """One parameter per sample."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = nn.Parameter(torch.zeros(num_samples))

    def forward(self, samples: Tensor) -> Tensor:
        return self.seen[samples]


def main() -> None:
    job_id, attempt, rank = os.environ["WEFT_JOB_ID"], os.environ["WEFT_ATTEMPT"], os.environ["RANK"]
    with (folder / "diary").open("a") as diary:
        diary.write(f"start {job_id} {attempt} {rank}\n")
    with weft.session(seed=0) as run:
        model = Ledger()
        # The gradient of a mean over the global batch is 1/BATCH_SIZE for each of its samples.
        optimizer = torch.optim.SGD(model.parameters(), lr=float(BATCH_SIZE))
        weft.overlap(model, optimizer, tune=False)
        data = run.loader(TensorDataset(torch.arange(num_samples)), batch_size=BATCH_SIZE)
        run.resume(model=model, optimizer=optimizer, data=data)
        for (samples,) in run.steps(data, epochs=1):
            time.sleep(step_s)
            optimizer.zero_grad()
            model(samples).mean().backward()
            optimizer.step()
            run.log(loss=1.0)
        counts = [round(-value, 3) for value in model.state_dict()["seen"].tolist()]
        if rank == "0" and all(counts):  # stopped before the end, it resumes later
            (folder / f"ledger-{job_id}.json").write_text(json.dumps(counts))


if __name__ == "__main__":
    main()
