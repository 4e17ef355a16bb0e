"""Reduce-scatter and all-gather must not cost more bytes than the all-reduce they replace."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

NUM_STEPS = 20
SCRIPT = f"""
import os, sys, pathlib
import torch, torch.distributed as dist
torch.set_num_threads(1)
kind, rank, rendezvous = sys.argv[1], int(sys.argv[2]), sys.argv[3]
dist.init_process_group("gloo", init_method="file://" + rendezvous, rank=rank, world_size=2)
torch.manual_seed(0)
model = torch.nn.Sequential(*[torch.nn.Linear(300, 300) for _ in range(8)])
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
forward = model
if kind == "ddp":
    forward = torch.nn.parallel.DistributedDataParallel(model)
else:
    import weft
    weft.overlap(model, optimizer, bucket_bytes=256 << 10, eager=kind == "eager")

def train(steps):
    for _ in range(steps):
        optimizer.zero_grad()
        forward(torch.ones(2, 300)).sum().backward()
        optimizer.step()
    [p.sum() for p in model.parameters()]
    dist.barrier()

def sent_bytes():
    # /proc shows the namespace of who reads it; /sys would show the one it was mounted in.
    line = next(l for l in pathlib.Path("/proc/self/net/dev").read_text().splitlines() if l.strip().startswith("lo:"))
    return int(line.split(":")[1].split()[8])

train(2)  # connections, and measuring the link
before = sent_bytes()
train({NUM_STEPS})
if rank == 0:
    print(sent_bytes() - before)
dist.barrier()
dist.destroy_process_group()
"""


def test_no_more_bytes_on_the_wire_than_ddp() -> None:
    """In a network namespace of its own, whose loopback carries nothing else."""
    ddp, barrier, eager = (bytes_per_step(kind) for kind in ("ddp", "barrier", "eager"))
    payload = 2 * 8 * (300 * 300 + 300) * 4  # both workers send every parameter's bytes once
    assert ddp > payload
    assert payload < barrier <= 1.02 * ddp
    assert payload < eager <= 1.02 * ddp


def bytes_per_step(kind: str) -> float:
    with tempfile.TemporaryDirectory() as folder:
        rendezvous = str(Path(folder, "rendezvous"))
        worker = [sys.executable, "-c", SCRIPT, kind]
        line = 'ip link set lo up || ifconfig lo up || exit 77; "$@" 1 "$R" & "$@" 0 "$R"; code=$?; wait $!; exit $code'
        done = subprocess.run(
            ["unshare", "-n", "sh", "-c", line, "sh", *worker],
            env={**os.environ, "R": rendezvous, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    if done.returncode == 77 or done.stderr.startswith("unshare:"):  # not a worker's own complaint
        pytest.skip("making a network namespace is not permitted here")
    assert done.returncode == 0, done.stderr
    return int(done.stdout) / NUM_STEPS
