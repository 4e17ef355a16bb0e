"""One worker of one stage.  Rank 0 prints its results, one JSON object per line."""

from __future__ import annotations

import datetime
import json
import os
import sys
import warnings
from collections.abc import Callable, Iterator

import torch
import torch.distributed as dist

from weft.worker.gpu_check.exactness import Row, exactness, plans_and_state
from weft.worker.gpu_check.step_speed import speed

STAGES: dict[str, Callable[[torch.device, bool], Iterator[Row]]] = {
    "exact": exactness,
    "plans": plans_and_state,
    "speed": speed,
}
_TIMEOUT_S = {"cuda": 60, "cpu": 300}


def main(stage: str, kind: str) -> None:
    rank = int(os.environ["RANK"])
    device = torch.device("cuda", rank) if kind == "cuda" else torch.device("cpu")
    if kind == "cuda":
        torch.cuda.set_device(device)
        torch.backends.cudnn.deterministic = True
        torch.backends.cudnn.benchmark = False
    else:
        torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    timeout = datetime.timedelta(seconds=_TIMEOUT_S[kind])
    dist.init_process_group("nccl" if kind == "cuda" else "gloo", timeout=timeout)
    for row in STAGES[stage](device, kind == "cpu"):
        if rank == 0:
            print(json.dumps(row), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
