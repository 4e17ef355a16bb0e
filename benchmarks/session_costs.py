"""What a session costs a training step: agreeing on when to stop, and checkpoints written beside the training.

    python benchmarks/session_costs.py

Two workers on this machine.  Every number is a ratio of two medians of the same run, in blocks that alternate, so that
what else the machine does falls on both.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import socket
import statistics
import sys
import tempfile
import time
from pathlib import Path

NUM_WORKERS = 2
STEP_S = 0.010
NUM_AGREEMENT_STEPS = 400
NUM_BLOCKS = 8
STEPS_PER_BLOCK = 50


def agreement_cost(rank: int) -> dict[str, float]:
    """Seconds per step spent in agreeing, without overlap, on top of a step of 10 ms."""
    from weft.worker.agreement import NOTHING, ByTurns
    from weft.worker.joining import peers_of_running_group

    agreement = ByTurns(peers_of_running_group())
    spent = []
    for _ in range(NUM_AGREEMENT_STEPS):
        time.sleep(STEP_S)
        began = time.perf_counter()
        agreement.after_step(NOTHING)
        spent.append(time.perf_counter() - began)
    agreement.close()
    settled = spent[NUM_AGREEMENT_STEPS // 4 :]
    return {"by_turns_fraction": statistics.fmean(settled) / STEP_S}


def checkpoint_cost(rank: int) -> dict[str, float]:
    """How much longer a step is when every 50th is followed by a checkpoint."""
    import torch
    from torch import nn

    import weft

    with weft.session(checkpoint_every_s=0) as run:
        model = nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10))
        optimizer = torch.optim.AdamW(model.parameters())
        weft.overlap(model, optimizer, tune=False)
        samples = torch.randn(4096, 512)
        data = run.loader(samples, batch_size=128)
        run.resume(model=model, optimizer=optimizer, data=data)
        blocks: dict[bool, list[float]] = {False: [], True: []}
        began = time.perf_counter()
        for x in run.steps(data, max_steps=2 * NUM_BLOCKS * STEPS_PER_BLOCK):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
            block, step = divmod(run.step, STEPS_PER_BLOCK)
            if step == 0 and block % 2:
                run.checkpoint()
            if step == STEPS_PER_BLOCK - 1:
                blocks[bool(block % 2)].append(time.perf_counter() - began)
                began = time.perf_counter()
        plain, saving = (statistics.median(blocks[kind]) for kind in (False, True))
        return {"step_ms": plain / STEPS_PER_BLOCK * 1e3, "checkpoint_fraction": saving / plain - 1.0}


def _worker(rank: int, port: int, folder: str) -> None:
    os.environ.update(
        RANK=str(rank),
        WORLD_SIZE=str(NUM_WORKERS),
        LOCAL_RANK=str(rank),
        LOCAL_WORLD_SIZE=str(NUM_WORKERS),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
        WEFT_CHECKPOINT_DIR=str(Path(folder, "checkpoints")),
        OMP_NUM_THREADS="1",
    )
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    row = {**agreement_cost(rank), **checkpoint_cost(rank)}
    if rank == 0:
        Path(folder, "row.json").write_text(json.dumps(row))
    dist.destroy_process_group()


def main() -> None:
    with socket.socket() as probe, tempfile.TemporaryDirectory() as folder:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        probe.close()
        context = multiprocessing.get_context("spawn")
        workers = [context.Process(target=_worker, args=(rank, port, folder)) for rank in range(NUM_WORKERS)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        if any(worker.exitcode for worker in workers):
            sys.exit("a worker failed: its error is above")
        print(Path(folder, "row.json").read_text())


if __name__ == "__main__":
    main()
