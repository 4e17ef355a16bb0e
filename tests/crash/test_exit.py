"""A worker that has trained everything ends with exit code 0, whatever its threads and the other workers are doing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.hang_limit import HANG_S

import weft

BEGIN = """
import os, sys, time, types
rank, folder, source = int(sys.argv[1]), sys.argv[2], sys.argv[3]
sys.path.insert(0, source)
import torch, torch.distributed as dist
import weft
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method="file://" + folder + "/rendezvous", rank=rank, world_size=2)
model = torch.nn.Linear(20, 20)
optimizer = torch.optim.AdamW(model.parameters())
handle = weft.overlap(model, optimizer)
model(torch.ones(2, 20)).sum().backward()
optimizer.step()
"""

# gloo's threads run only while nobody else wants the core, and the script does not give them the interpreter lock.
RELEASED_TOO_LATE = """
handle.detach()
kept = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
kept(torch.ones(1, 4)).sum().backward()
for task in os.listdir("/proc/self/task"):
    if open(f"/proc/self/task/{task}/comm").read().strip() == "pt_gloo_runloop":
        os.sched_setscheduler(int(task), os.SCHED_IDLE, os.sched_param(0))
sys.setswitchinterval(1000)
for _ in range(3):
    value = torch.ones(1)
    dist.all_reduce(value)
    del value
dist.destroy_process_group()
"""

# Worker 0 says goodbye, which wakes worker 1's thread, while worker 1 is shutting down after an error.
WOKEN_TOO_LATE = """
gone, told = folder + "/gone", folder + "/told"

def wait_for(path, exists=os.path.exists, sleep=time.sleep):
    while not exists(path):
        sleep(0.01)

class Late:
    def __del__(self, wait_for=wait_for, open=open, gone=gone, told=told, sleep=time.sleep):
        open(gone, "w").close()
        wait_for(told)
        sleep(1.0)

if rank == 1:
    sys.modules["late"] = types.ModuleType("late")
    sys.modules["late"].late = Late()
    raise KeyError("a bug")
wait_for(gone)
service = handle.parts[0].state.service
send_to = service._send_to

def send(tensors, other, tag):
    work = send_to(tensors, other, tag)
    if tag == 1:  # ends worker 1's thread
        open(told, "w").close()
    return work

service._send_to = send
"""


def test_a_script_is_not_aborted_while_gloo_releases_its_last_collective(tmp_path: Path) -> None:
    """Seen in a benchmark and in the overlap demo, which have a DistributedDataParallel model."""
    codes, errors = _ends(BEGIN + RELEASED_TOO_LATE, tmp_path)
    assert codes == [0, 0], errors


def test_a_worker_that_failed_keeps_its_exit_code_when_another_says_goodbye(tmp_path: Path) -> None:
    codes, errors = _ends(BEGIN + WOKEN_TOO_LATE, tmp_path)
    assert codes == [0, 1], errors
    assert "a bug" in errors[1]
    assert "terminate called" not in errors[1]


def _ends(script: str, folder: Path) -> tuple[list[int], list[str]]:
    """Exit codes and standard errors of two workers."""
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    source = str(Path(weft.__file__).parents[1])
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", script, str(rank), str(folder), source],
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        errors = [worker.communicate(timeout=HANG_S)[1] for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
            worker.communicate()
    return [worker.returncode for worker in workers], errors
