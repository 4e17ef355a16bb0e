"""What a session costs a training step: agreeing on when to stop, and checkpoints written during training.

    python -m benchmarks.session_costs [--rounds 5] [--quick] [--out FOLDER]

Two workers on this machine.  Agreeing is timed inside steps of 10 ms, by votes that travel with an overlapped model's
gradients, and by turns for other models.  Checkpoints: blocks of 50 steps with one checkpoint each alternate with
blocks without one, so that other load on the machine affects both; the cost is the ratio of their medians.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.figures import Document, draw_costs, finish
from benchmarks.program import counted, parse, say
from weft.engines.rendezvous import ReservedPort

NUM_WORKERS = 2
STEP_S = 0.010
NUM_AGREEMENT_STEPS = 400
NUM_BLOCKS = 8
STEPS_PER_BLOCK = 50
# (field, description, limit)
MEASURED = (
    ("by_votes_fraction", "agreeing on a stop, overlapped model, of a 10 ms step", 0.005),
    ("by_turns_fraction", "agreeing on a stop, any other model, of a 10 ms step", 0.005),
    ("checkpoint_fraction", "a checkpoint every 50 steps, of a step", 0.05),
)

Row = dict[str, float]


def by_turns_cost() -> Row:
    """The part of a step of 10 ms that agreeing takes without overlap."""
    from weft.worker.agreement import NOTHING, ByTurns
    from weft.worker.joining import peers_of_running_group

    agreement = ByTurns(peers_of_running_group())
    spent = []
    for _ in range(NUM_AGREEMENT_STEPS):
        time.sleep(STEP_S)
        began_s = time.perf_counter()
        agreement.before_step(NOTHING)
        agreement.after_step(NOTHING)
        spent.append(time.perf_counter() - began_s)
    agreement.close()
    return {"by_turns_fraction": _settled_mean(spent) / STEP_S}


def by_votes_cost() -> Row:
    """The same with an overlapped model: what travels with the gradients costs bytes that are sent anyway."""
    import torch
    from torch import nn

    import weft
    from weft.worker.agreement import NOTHING, ByVotes
    from weft.worker.joining import peers_of_running_group

    model = nn.Linear(64, 64)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    handle = weft.overlap(model, optimizer, tune=False)
    agreement = ByVotes(handle, peers_of_running_group())
    samples = torch.randn(8, 64)
    spent = []
    for _ in range(NUM_AGREEMENT_STEPS):
        began_s = time.perf_counter()
        agreement.before_step(NOTHING)
        spent_s = time.perf_counter() - began_s
        time.sleep(STEP_S)
        model(samples).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        began_s = time.perf_counter()
        agreement.after_step(NOTHING)
        spent.append(spent_s + time.perf_counter() - began_s)
    agreement.close()
    handle.detach()
    return {"by_votes_fraction": _settled_mean(spent) / STEP_S}


def checkpoint_cost(folder: str) -> Row:
    """How much longer a step is when every 50th is followed by a checkpoint."""
    import torch
    from torch import nn

    import weft

    os.environ["WEFT_CHECKPOINT_DIR"] = folder
    with weft.session(checkpoint_every_s=0) as run:
        model = nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10))
        optimizer = torch.optim.AdamW(model.parameters())
        handle = weft.overlap(model, optimizer, tune=False)
        data = run.loader(torch.randn(4096, 512), batch_size=128)
        run.resume(model=model, optimizer=optimizer, data=data)
        blocks: dict[bool, list[float]] = {False: [], True: []}
        num_late = 0
        began_s = time.perf_counter()
        # The first block warms up and is left out.
        for x in run.steps(data, max_steps=(2 * NUM_BLOCKS + 1) * STEPS_PER_BLOCK):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
            block, step = divmod(run.step, STEPS_PER_BLOCK)
            saves = block % 2 == 1
            if step == 0 and saves:
                run.checkpoint()
            if step == STEPS_PER_BLOCK - 1:
                now_s = time.perf_counter()
                if block > 0:
                    blocks[saves].append(now_s - began_s)
                began_s = now_s
                num_late += saves and run._checkpointing.busy
        plain_s, saving_s = (statistics.median(blocks[kind]) for kind in (False, True))
        handle.detach()
    return {
        "step_ms": plain_s / STEPS_PER_BLOCK * 1e3,
        "checkpoint_fraction": saving_s / plain_s - 1.0,
        # Still being written in a block without a checkpoint, so that the cost is underestimated.
        "num_late_checkpoints": float(num_late),
    }


def _settled_mean(spent: Sequence[float]) -> float:
    """The mean, because rare and expensive steps count; without the start, when k is still being found."""
    return statistics.fmean(spent[len(spent) // 4 :])


def _worker(rank: int, port: int, folder: str, num_rounds: int) -> None:
    os.environ.update(
        RANK=str(rank),
        WORLD_SIZE=str(NUM_WORKERS),
        LOCAL_RANK=str(rank),
        LOCAL_WORLD_SIZE=str(NUM_WORKERS),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
        OMP_NUM_THREADS="1",
        GLOO_SOCKET_IFNAME="lo",
    )
    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[rank % len(os.sched_getaffinity(0))]})
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rows = []
    for number in range(num_rounds):
        rows.append({**by_turns_cost(), **by_votes_cost(), **checkpoint_cost(str(Path(folder, str(number))))})
        if rank == 0:
            say(f"round {number + 1} of {num_rounds}: {rows[-1]}")
    if rank == 0:
        Path(folder, "rows.json").write_text(json.dumps(rows))
    dist.destroy_process_group()


def measure(num_rounds: int) -> list[Row]:
    with ReservedPort() as place, tempfile.TemporaryDirectory() as folder:
        context = multiprocessing.get_context("spawn")
        workers = [
            context.Process(target=_worker, args=(rank, place.port, folder, num_rounds)) for rank in range(NUM_WORKERS)
        ]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        if any(worker.exitcode for worker in workers):
            sys.exit("a worker failed: its error is above")
        rows: list[Row] = json.loads(Path(folder, "rows.json").read_text())
        return rows


def tables(document: Document) -> str:
    """Medians over the rounds, and the worst of them."""
    rows: Sequence[Row] = document["rows"]
    lines = ["| cost | median | worst round | wanted below |", "|---|---:|---:|---:|"]
    for field, words, allowed in MEASURED:
        found = [row[field] for row in rows]
        lines.append(f"| {words} | {statistics.median(found):.2%} | {max(found):.2%} | {allowed:.1%} |")
    step_ms = statistics.median(row["step_ms"] for row in rows)
    num_late = sum(row["num_late_checkpoints"] for row in rows)
    late = counted(round(num_late), "checkpoint")
    lines += [
        "",
        f"Two workers, {counted(len(rows), 'round')}. Checkpoint blocks: steps of {step_ms:.1f} ms; {late} took longer "
        "than 50 steps.",
    ]
    return "\n".join(lines)


def draw(document: Document, path: Path) -> None:
    """The median of each cost as a share of what is allowed; a negative one is noise."""
    costs = []
    for field, words, allowed in MEASURED:
        found = statistics.median(row[field] for row in document["rows"])
        costs.append((words, max(found, 0.0), allowed, f"{found:.2%}"))
    draw_costs("What a session costs", costs, document, path)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    options, folder = parse(parser, argv, quick="one round", rounds=5)
    num_rounds = options.rounds
    document = {"rounds": num_rounds, "rows": measure(num_rounds)}
    finish("session_costs", f"python -m benchmarks.session_costs --rounds {num_rounds}", document, tables, draw, folder)


if __name__ == "__main__":
    main()
