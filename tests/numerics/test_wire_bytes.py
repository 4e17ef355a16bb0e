"""Reduce-scatter and all-gather must not cost more bytes than the all-reduce they replace."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from tests.hang_limit import HANG_S

NUM_STEPS = 20
SCRIPT = f"""
import os, sys, pathlib
import torch, torch.distributed as dist
torch.set_num_threads(1)
import weft
rank, rendezvous = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method="file://" + rendezvous, rank=rank, world_size=2)

def make(kind):
    torch.manual_seed(0)
    model = torch.nn.Sequential(*[torch.nn.Linear(300, 300) for _ in range(8)])
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    if kind == "ddp":
        return torch.nn.parallel.DistributedDataParallel(model), optimizer
    weft.overlap(model, optimizer, bucket_bytes=256 << 10, eager=kind == "eager")
    return model, optimizer

def train(model, optimizer, steps):
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.ones(2, 300)).sum().backward()
        optimizer.step()
    [p.sum() for p in model.parameters()]
    dist.barrier()

def sent_bytes():
    # /proc shows the namespace of who reads it; /sys would show the one it was mounted in.
    line = next(l for l in pathlib.Path("/proc/self/net/dev").read_text().splitlines() if l.strip().startswith("lo:"))
    return int(line.split(":")[1].split()[8])

for kind in ("ddp", "barrier", "eager"):
    run = make(kind)
    train(*run, 2)  # connections, and measuring the link
    before = sent_bytes()
    train(*run, {NUM_STEPS})
    if rank == 0:
        print(sent_bytes() - before)
    dist.barrier()
dist.destroy_process_group()
"""


def test_no_more_bytes_on_the_wire_than_ddp() -> None:
    """In a network namespace of its own, whose loopback carries nothing else."""
    ddp, barrier, eager = bytes_per_step()
    payload = 2 * 8 * (300 * 300 + 300) * 4  # both workers send every parameter's bytes once
    assert ddp > payload
    assert payload < barrier <= 1.02 * ddp
    assert payload < eager <= 1.02 * ddp


def bytes_per_step() -> list[float]:
    with tempfile.TemporaryDirectory() as folder:
        rendezvous = str(Path(folder, "rendezvous"))
        worker = [sys.executable, "-c", SCRIPT]
        line = 'ip link set lo up || ifconfig lo up || exit 77; "$@" 1 "$R" & "$@" 0 "$R"; code=$?; wait $!; exit $code'
        done = subprocess.run(
            ["unshare", "-n", "sh", "-c", line, "sh", *worker],
            env={**os.environ, "R": rendezvous, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=HANG_S,
            check=False,
        )
    if done.returncode == 77 or done.stderr.startswith("unshare:"):  # not a worker's own error
        pytest.skip("making a network namespace is not permitted here")
    assert done.returncode == 0, done.stderr
    return [int(line) / NUM_STEPS for line in done.stdout.split()]
