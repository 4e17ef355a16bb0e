"""What several workers per host put on the host's link, counted by the link."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks.testbed import Testbed, missing_reason

pytestmark = [
    pytest.mark.netns,
    pytest.mark.skipif(missing_reason() is not None, reason=str(missing_reason())),
]
NUM_STEPS = 5
# Headers of packets, acknowledgments, and the few numbers behind each row.
OVERHEAD = 1.06

SCRIPT = f"""
import json, os, pathlib
import torch, torch.distributed as dist
torch.set_num_threads(1)
import weft
dist.init_process_group("gloo")
model = torch.nn.Sequential(*[torch.nn.Linear(300, 300) for _ in range(8)])
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
handle = weft.overlap(model, optimizer, bucket_bytes=512 << 10)

def train(steps):
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.ones(2, 300)).sum().backward()
        optimizer.step()
    handle.flush()
    dist.barrier()

def sent_bytes():
    lines = pathlib.Path("/proc/self/net/dev").read_text().splitlines()
    return int(next(line for line in lines if line.strip().startswith("eth0:")).split(":")[1].split()[8])

train(2)  # connections, and measuring the link
before = sent_bytes()
train({NUM_STEPS})
print(json.dumps({{
    "transport": type(handle.schedule.transport).__name__,
    "model": sum(p.numel() * 4 for p in model.parameters()),
    "sent": (sent_bytes() - before) / {NUM_STEPS},
}}), flush=True)
dist.barrier()
dist.destroy_process_group()
"""


@pytest.mark.parametrize("num_hosts", [2, 3])
def test_a_hosts_link_carries_each_byte_once_however_many_workers_share_it(tmp_path: Path, num_hosts: int) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    with Testbed(num_hosts, 1e9, workers_per_host=2) as bed:
        outputs = bed.run((sys.executable, str(script)), timeout_s=240.0)
    found = [json.loads(output.lines[-1]) for output in outputs]
    assert [row["transport"] for row in found] == ["HostsTransport"] * 2 * num_hosts
    for row in found:
        least = 2 * (num_hosts - 1) / num_hosts * row["model"]
        assert least <= row["sent"] <= OVERHEAD * least


TIMEOUT_S = 15
LOST = f"""
import datetime, os
import torch, torch.distributed as dist
torch.set_num_threads(1)
import weft
from weft.errors import OverlapError
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds={TIMEOUT_S}))
model = torch.nn.Sequential(*[torch.nn.Linear(300, 300) for _ in range(8)])
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
weft.overlap(model, optimizer, bucket_bytes=512 << 10)
try:
    for step in range(100_000):
        optimizer.zero_grad()
        model(torch.ones(2, 300)).sum().backward()
        optimizer.step()
        if step == 5:
            print("trains", flush=True)
except OverlapError as error:
    print("told:", error, flush=True)
os._exit(0)  # waiting for the others to leave would never end
"""


@pytest.mark.soak
def test_a_lost_link_ends_every_worker_with_an_error_at_the_timeout(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(LOST)
    told: dict[int, str] = {}
    with Testbed(2, 1e9, workers_per_host=2) as bed:

        def listen(rank: int, line: str) -> None:
            if line == "trains" and rank == 0:
                subprocess.run(("ip", "-n", bed.plan.host(1), "link", "set", "eth0", "down"), check=True)
            if line.startswith("told: "):
                told[rank] = line

        bed.run((sys.executable, str(script)), timeout_s=240.0, on_line=listen)
    assert sorted(told) == [0, 1, 2, 3]
