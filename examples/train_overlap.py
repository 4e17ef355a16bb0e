"""An ordinary data-parallel training script, with weft in two lines.

    torchrun --nproc-per-node 2 examples/train_overlap.py [--steps 120] [--checkpoint run.pt] [--trace DIR]

A small network learns to classify the points of three spirals.  Each worker generates its own part of the data.
Run it again with the same --checkpoint, even on a different number of workers, and it resumes where it ended.
"""

from __future__ import annotations

import argparse
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

import weft


def spirals(num_points: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Points in the plane and which of the three spirals each lies on."""
    generator = torch.Generator().manual_seed(seed)
    label = torch.randint(0, 3, (num_points,), generator=generator)
    radius = torch.rand(num_points, generator=generator)
    angle = 5 * radius + label * (2 * torch.pi / 3) + 0.1 * torch.randn(num_points, generator=generator)
    return torch.stack([radius * angle.cos(), radius * angle.sin()], dim=1), label


def train(num_steps: int, checkpoint: Path | None, trace_folder: Path | None) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    handle = weft.overlap(model, optimizer)

    first_step = 0
    if checkpoint is not None and checkpoint.exists():
        saved = torch.load(checkpoint, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        first_step = saved["step"]

    rank = dist.get_rank()
    recording: AbstractContextManager[None] = nullcontext()
    if trace_folder is not None:
        recording = handle.trace(trace_folder / f"rank{rank}.json")
    with recording:
        for step in range(first_step, first_step + num_steps):
            x, y = spirals(512, seed=step * dist.get_world_size() + rank)
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if rank == 0 and (step + 1) % 20 == 0:
                print(f"step {step + 1}: loss {loss.item():.4f}", flush=True)

    if rank == 0:
        print(handle.report())
        if checkpoint is not None:
            # Only this worker asks; the other workers' shards of the optimizer state are fetched automatically.
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": first_step + num_steps}
            torch.save(state, checkpoint)
            print(f"saved {checkpoint}")


def main() -> None:
    parser = argparse.ArgumentParser(description="Train with communication under backward and the next forward.")
    parser.add_argument("--steps", type=int, default=120, help="how many steps to train (default %(default)s)")
    parser.add_argument("--checkpoint", type=Path, help="file to resume from, and to save to at the end")
    parser.add_argument("--trace", type=Path, help="folder for one timeline per worker (for `weft trace`)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    train(options.steps, options.checkpoint, options.trace)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
