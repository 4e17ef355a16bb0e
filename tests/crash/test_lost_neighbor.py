"""A worker that is killed in mid-training on a host it shares: everybody else ends with an error, nothing stays."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from tests.hang_limit import HANG_S

TIMEOUT_S = 20

# One process imports torch and forks the workers: two hosts of two.
SCRIPT = f"""
import datetime, os, signal, sys, tempfile
import torch, torch.distributed as dist
torch.set_num_threads(1)
import weft
from weft.errors import OverlapError

how, folder = sys.argv[1], tempfile.mkdtemp()

def work(rank):
    os.environ["WEFT_HOST"] = str(rank // 2)
    timeout = datetime.timedelta(seconds={TIMEOUT_S})
    dist.init_process_group("gloo", init_method=f"file://{{folder}}/r", rank=rank, world_size=4, timeout=timeout)
    model = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(6)])
    optimizer = torch.optim.AdamW(model.parameters())
    handle = weft.overlap(model, optimizer, bucket_bytes=16 << 10)
    assert type(handle.schedule.transport).__name__ == "HostsTransport"
    step = 0

    def lost(*_):
        if rank == 1 and step == 3:
            print("shared memory files:", sum("/dev/shm" in line for line in open("/proc/self/maps")), flush=True)
            if how == "stop":
                print("pid", os.getpid(), flush=True)
            os.kill(os.getpid(), signal.SIGSTOP if how == "stop" else signal.SIGKILL)

    model[3].weight.register_hook(lost)  # in the middle of a backward: half of the buckets have left
    try:
        for step in range(1000):
            optimizer.zero_grad()
            model(torch.ones(2, 64)).sum().backward()
            optimizer.step()
    except OverlapError as error:
        print(f"worker {{rank}}: {{error}}", flush=True)
    except RuntimeError as error:  # the training script's own collective
        print(f"worker {{rank}} runtime: {{error}}", flush=True)

children = []
for rank in range(4):
    child = os.fork()
    if child == 0:
        work(rank)
        os._exit(0)  # whoever waits for the others' farewells has nobody left
    children.append(child)
for rank in (0, 2, 3):
    os.waitpid(children[rank], 0)
os.kill(children[1], signal.SIGKILL)
os.waitpid(children[1], 0)
"""


@pytest.mark.parametrize("how", ["kill", "stop"])
def test_a_lost_worker_ends_its_neighbors_and_the_other_hosts_within_the_timeout(how: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, how],
        env={**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )
    lines = done.stdout.splitlines()
    told = {rank: [line for line in lines if line.startswith(f"worker {rank}:")] for rank in (0, 2, 3)}
    assert all(told.values()), done.stdout + done.stderr
    assert "worker 1 on the same host" in told[0][0] or "another worker has stopped" in told[0][0]
    assert "shared memory files: 0" in lines
