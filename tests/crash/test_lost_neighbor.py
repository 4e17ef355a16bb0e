"""A worker that is killed in mid-training on a shared host or in a grid: all others end with an error."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence

import pytest
from tests.hang_limit import HANG_S

# One process imports torch and forks the workers.
SCRIPT = """
import datetime, os, signal, sys, tempfile
import torch, torch.distributed as dist
torch.set_num_threads(1)
import weft
from weft.errors import OverlapError

how, num_workers, per_host, timeout_s = sys.argv[1], *map(int, sys.argv[2:])
folder = tempfile.mkdtemp()

def work(rank):
    os.environ["WEFT_HOST"] = str(rank // per_host)
    timeout = datetime.timedelta(seconds=timeout_s)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/r", rank=rank, world_size=num_workers, timeout=timeout
    )
    model = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(6)])
    optimizer = torch.optim.AdamW(model.parameters())
    handle = weft.overlap(model, optimizer, bucket_bytes=16 << 10)
    assert type(handle.schedule.transport).__name__ == ("GridTransport" if per_host == 1 else "HostsTransport")
    step = 0

    def lost(*_):
        if rank == 1 and step == 3:
            print("shared memory files:", sum("/dev/shm" in line for line in open("/proc/self/maps")), flush=True)
            if how == "stop":
                print("pid", os.getpid(), flush=True)
            if how == "host":
                os.kill(children[0], signal.SIGKILL)  # its only neighbor
            os.kill(os.getpid(), signal.SIGSTOP if how == "stop" else signal.SIGKILL)

    model[3].weight.register_hook(lost)  # in the middle of a backward: half of the buckets have left
    try:
        for step in range(1000):
            optimizer.zero_grad()
            model(torch.ones(2, 64)).sum().backward()
            optimizer.step()
    except OverlapError as error:
        os.write(1, f"worker {rank}: {error}\\n".encode())  # one write: lines of two workers do not mix
    except RuntimeError as error:  # the training script's own collective
        os.write(1, f"worker {rank} runtime: {error}\\n".encode())

children = []
for rank in range(num_workers):
    child = os.fork()
    if child == 0:
        work(rank)
        os._exit(0)  # waiting for the others to leave would never end
    children.append(child)
for rank in {*range(num_workers)} - {1}:
    os.waitpid(children[rank], 0)
os.kill(children[1], signal.SIGKILL)
os.waitpid(children[1], 0)
"""


@pytest.mark.parametrize("how", ["kill", "stop"])
def test_a_lost_worker_ends_its_neighbors_and_the_other_hosts_within_the_timeout(how: str) -> None:
    lines = _lines_without_worker_1(how, (0, 2, 3))
    told = next(line for line in lines if line.startswith("worker 0:"))
    assert "worker 1 on the same host" in told or "another worker has stopped" in told


def test_a_lost_host_ends_the_workers_of_the_other_hosts_within_the_timeout() -> None:
    _lines_without_worker_1("host", (2, 3))


@pytest.mark.soak
@pytest.mark.parametrize("per_host", [1, 4])
def test_a_lost_worker_ends_the_fifteen_others_within_the_timeout(per_host: int) -> None:
    _lines_without_worker_1("kill", [0, *range(2, 16)], num_workers=16, per_host=per_host, timeout_s=60)


def _lines_without_worker_1(
    how: str, survivors: Sequence[int], num_workers: int = 4, per_host: int = 2, timeout_s: int = 20
) -> list[str]:
    """What the workers printed; every survivor ended with an error, and no memory file was used."""
    before = set(os.listdir("/dev/shm"))
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, how, *map(str, (num_workers, per_host, timeout_s))],
        env={**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )
    lines = done.stdout.splitlines()
    for rank in survivors:
        assert any(line.startswith(f"worker {rank}:") for line in lines), done.stdout + done.stderr
    assert "shared memory files: 0" in lines
    assert not {name for name in set(os.listdir("/dev/shm")) - before if "weft" in name}
    return lines
