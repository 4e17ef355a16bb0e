"""Two workers on a slow link train a small transformer with DDP and with weft: same losses, less waiting.

    python examples/overlap_demo.py [--steps 24]

With root and iproute2 the workers run on two hosts made of network namespaces, connected by a link just slow enough
that sending the gradients takes as long as computing them.  Otherwise they are two plain processes.  Started by
torchrun (or anything else that sets RANK and WORLD_SIZE), the script is one worker.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

NUM_ALONE_STEPS = 6
NUM_STEPS = 24


# Inside a namespace there is no name service, which torch would warn about.
QUIET = {"TORCH_CPP_LOG_LEVEL": "ERROR"}

# ---- one worker: an ordinary training script


def worker(num_steps: int) -> None:
    """Train the same model alone, with DDP, and with weft; rank 0 reports progress as JSON lines."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    import weft

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    try:
        model = make_model()
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
        num_bytes = sum(p.numel() * p.element_size() for p in model.parameters())
        alone = train("alone", model, optimizer, NUM_ALONE_STEPS)
        compute_s = slowest(alone.settled_step_s)
        tell(compute_s=compute_s, gradient_bytes=num_bytes)

        model = make_model()
        ddp_model = DistributedDataParallel(model)
        optimizer = torch.optim.AdamW(ddp_model.parameters(), lr=3e-4)
        ddp = train("DDP", ddp_model, optimizer, num_steps)

        model = make_model()
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
        handle = weft.overlap(model, optimizer)  # the only line weft needs
        overlapped = train("weft", model, optimizer, num_steps)
        handle.detach()

        is_same = slowest(float(ddp.losses != overlapped.losses)) == 0.0
        tell(
            ddp_s=slowest(ddp.settled_step_s),
            weft_s=slowest(overlapped.settled_step_s),
            num_losses=len(ddp.losses),
            first_loss=ddp.losses[0],
            last_losses=[ddp.losses[-1], overlapped.losses[-1]],
            is_same=is_same,
        )
    finally:
        dist.destroy_process_group()


class Curve:
    """The losses and step times of one training run."""

    def __init__(self) -> None:
        self.losses: list[float] = []
        self.step_s: list[float] = []

    @property
    def settled_step_s(self) -> float:
        """Median of the second half: by then DDP has ordered its buckets and weft has sized its own."""
        return median(self.step_s[len(self.step_s) // 2 :])


def train(name: str, model: Any, optimizer: Any, num_steps: int) -> Curve:
    """An ordinary training loop."""
    import torch.distributed as dist
    from torch.nn import functional as F

    curve = Curve()
    batches = make_batches(dist.get_rank())
    dist.barrier()
    ended_s = time.perf_counter()
    for step in range(num_steps):
        x, y = batches[step % len(batches)]
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        curve.losses.append(loss.item())
        curve.step_s.append(time.perf_counter() - ended_s)
        ended_s = time.perf_counter()
        tell(name=name, step=step + 1, num_steps=num_steps, loss=curve.losses[-1])
    return curve


def make_model() -> Any:
    """About seven million parameters, with the same initial values every time."""
    import torch
    from benchmarks.models import LanguageModel

    torch.manual_seed(0)
    return LanguageModel(vocabulary=4096, width=320, num_layers=4, num_heads=5, length=96)


def make_batches(rank: int) -> list[Any]:
    """This worker's part of the data."""
    import torch

    generator = torch.Generator().manual_seed(rank)
    tokens = [torch.randint(0, 4096, (4, 97), generator=generator) for _ in range(4)]
    return [(t[:, :-1].contiguous(), t[:, 1:].flatten()) for t in tokens]


def slowest(value: float) -> float:
    """The largest of all workers' values."""
    import torch
    import torch.distributed as dist

    tensor = torch.tensor([value], dtype=torch.float64)
    dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
    return tensor.item()


def tell(**words: Any) -> None:
    if os.environ["RANK"] == "0":
        print(json.dumps(words), flush=True)


# ---- the launcher: two hosts, a link, and the results


def main(num_steps: int) -> None:
    from benchmarks.testbed import Testbed, missing_reason

    reason = missing_reason()
    command = (sys.executable, str(Path(__file__).resolve()), "--steps", str(num_steps))
    if reason is not None:
        print(f"Cannot create a shaped link here: {reason}.")
        print("Using two plain processes on one machine instead: the losses still match, but the gain will not show.")
        outcome = Outcome()
        run_on_loopback(command, outcome)
        outcome.print_summary()
        return
    print("Two hosts (network namespaces) with one core each, connected by a shaped link.")
    with Testbed(num_hosts=2, rate_bits_per_s=1e9) as bed:
        outcome = Outcome(bed)
        bed.run(command, env=QUIET, on_line=outcome.hear, timeout_s=300)
    outcome.print_summary()


class Outcome:
    """Listens to the workers, shows progress, and collects the results."""

    def __init__(self, bed: Any = None) -> None:
        self._bed = bed
        self._heard: dict[str, Any] = {}

    def hear(self, rank: int, line: str) -> None:
        if rank != 0:
            return
        if not line.startswith("{"):
            print(line, file=sys.stderr)
            return
        words = json.loads(line)
        if "step" in words:
            show_progress(words)
            return
        self._heard |= words
        if "compute_s" in words and self._bed is not None:
            # Two workers send each gradient byte once: at this rate that takes as long as the compute.
            self._bed.set_rate(words["gradient_bytes"] * 8 / words["compute_s"])
            print(
                f"Compute takes {words['compute_s'] * 1000:.0f} ms per step; the link now carries "
                f"{self._bed.rate_bits_per_s / 1e6:.0f} Mbit/s, "
                f"so sending {words['gradient_bytes'] / 1e6:.0f} MB of gradients takes as long."
            )

    def print_summary(self) -> None:
        heard = self._heard
        compute_ms, ddp_ms, weft_ms = (1000 * heard[name] for name in ("compute_s", "ddp_s", "weft_s"))
        print()
        print("                 step    exposed communication")
        print(f"  alone     {compute_ms:6.0f} ms")
        for name, step_ms in (("DDP", ddp_ms), ("weft", weft_ms)):
            print(f"  {name:<8}  {step_ms:6.0f} ms    {max(0.0, step_ms - compute_ms):6.0f} ms")
        print()
        print(f"weft is {ddp_ms / weft_ms:.2f}x as fast as DDP.")
        if heard["is_same"]:
            print(
                f"All {heard['num_losses']} losses are identical bit for bit on both workers: "
                f"{heard['first_loss']:.6f} -> {heard['last_losses'][1]:.6f}."
            )
        else:
            sys.exit(
                f"The losses differ (last: {heard['last_losses'][0]!r} and {heard['last_losses'][1]!r}). "
                "They should match bit for bit on two workers: please report this with your torch version."
            )


def show_progress(words: dict[str, Any]) -> None:
    """A progress bar in a terminal; otherwise one line when a run is done."""
    is_last = words["step"] == words["num_steps"]
    if sys.stdout.isatty():
        num_full = 24 * words["step"] // words["num_steps"]
        bar = "#" * num_full + "." * (24 - num_full)
        count = f"step {words['step']:>2}/{words['num_steps']}"
        print(
            f"\r  {words['name']:<6} [{bar}] {count}  loss {words['loss']:.4f}",
            end="\n" if is_last else "",
            flush=True,
        )
    elif is_last:
        print(f"  {words['name']}: {words['num_steps']} steps, loss {words['loss']:.4f}", flush=True)


def run_on_loopback(command: tuple[str, ...], outcome: Outcome) -> None:
    """Two plain workers on this machine, as torchrun would start them."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    base = {
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "OMP_NUM_THREADS": "1",
        **QUIET,
    }
    workers = [
        subprocess.Popen(
            command,
            env={**os.environ, **base, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE if rank == 0 else None,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        for line in workers[0].stdout or ():
            outcome.hear(0, line.rstrip("\n"))
        exit_codes = [started.wait(timeout=60) for started in workers]
    finally:
        for started in workers:
            started.kill()
    if any(exit_codes):
        sys.exit(f"a worker failed (exit codes {exit_codes}); see its output above")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Train with DDP and with weft on the same slow link.")
    parser.add_argument("--steps", type=int, default=NUM_STEPS, help="training steps for each (default %(default)s)")
    options = parser.parse_args()
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        worker(options.steps)
    else:
        main(options.steps)
