"""What several workers per host put on the host's link, counted by the link."""

from __future__ import annotations

import json
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
