"""The controller lets jobs share devices: real processes, a real lease server, and nothing left behind."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.hang_limit import HANG_S

from weft.client import Client
from weft.crossover.lease_launch import LOG_NAME, SOCKET_NAME
from weft.daemon.home import Home

# A job that computes (with the device, without using a core: there may be few) and waits twice as long.  It looks
# as if it had a quarter of an hour to go, so that a restart is worth it, and then finds that it is good enough.
JOB = """
import sys, time
import torch
import weft

with weft.session() as run:
    model = torch.nn.Linear(1, 1)
    data = run.loader(torch.utils.data.TensorDataset(torch.zeros(1000, 1)), batch_size=1)
    run.resume(model=model, data=data)
    for (x,) in run.steps(data, epochs=10):
        if run.step >= int(sys.argv[1]):
            break
        if run.step == 25:
            print("measured", flush=True)
        model(x)
        time.sleep(0.03)
        with weft.crossover.waiting():
            time.sleep(0.06)
"""


class Cluster:
    """Two devices and the command line."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.home = Home(root / "home")
        self.client = Client(self.home.root)
        self.environment = {
            **os.environ,
            "WEFT_HOME": str(self.home.root),
            "PYTHONPATH": os.pathsep.join(sys.path),
            "OMP_NUM_THREADS": "1",
        }
        (root / "job.py").write_text(JOB)

    def run(self, *args: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "weft", *args],
            capture_output=True,
            text=True,
            timeout=HANG_S,
            env=self.environment,
            cwd=self.root,
            check=False,
        )

    def ok(self, *args: str) -> str:
        done = self.run(*args)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def up(self, *args: str) -> Any:
        return json.loads(self.ok("up", "--port", "0", "--devices", "2", "--hold-s", "0.2", *args, "--json"))

    def submit(self, num_steps: int) -> str:
        return self.ok("submit", "--workers", "1", "--", sys.executable, "job.py", str(num_steps)).strip()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path)
    yield made
    if made.home.holder():
        made.run("down", "--jobs")
    left = made.home.holder()
    if left:
        os.kill(left, signal.SIGKILL)


def processes_of(home: Path) -> list[str]:
    """Command lines that name this home."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            words = path.read_bytes()
            if os.fsencode(home) in words:
                found.append(words.replace(b"\0", b" ").decode(errors="replace"))
    return found


def test_three_jobs_on_two_devices_share_complete_and_leave_nothing_behind(cluster: Cluster) -> None:
    cluster.up()
    ids = [cluster.submit(90), cluster.submit(90)]
    for job_id in ids:
        assert b"measured" in next(cluster.client.logs(job_id, follow=True))
    ids.append(cluster.submit(15))
    assert cluster.run("wait", *ids).returncode == 0
    told = {job_id: cluster.ok("explain", job_id) for job_id in ids}
    # Which two share, and whether they take turns, depends on what was measured; both jobs get the same reason.
    paired = [job_id for job_id in ids if "x the work of running one after the other" in told[job_id]]
    assert len(paired) >= 2, told
    for job_id in paired:
        assert any(words in told[job_id] for words in ("takes turns with", "runs in")), told[job_id]
    assert (cluster.home.sockets / LOG_NAME).exists()
    assert any("weft.crossover.server" in words for words in processes_of(cluster.home.root))
    cluster.ok("down", "--jobs")
    assert not (cluster.home.sockets / SOCKET_NAME).exists()
    assert processes_of(cluster.home.root) == []


def test_without_sharing_no_pair_is_made_and_the_waiting_job_says_why(cluster: Cluster) -> None:
    cluster.up("--no-share")
    ids = [cluster.submit(10_000), cluster.submit(10_000), cluster.submit(5)]
    why = "devices are not shared: the controller was started with --no-share"
    latest_s = time.monotonic() + HANG_S
    while why not in (told := cluster.ok("explain", ids[2])):
        assert time.monotonic() < latest_s, told
        cluster.client.wait([ids[2]], timeout_s=0.2)
    cluster.ok("cancel", *ids[:2])
    assert cluster.run("wait", ids[2]).returncode == 0
    told = "".join(cluster.ok("explain", job_id) for job_id in ids)
    assert "takes turns" not in told
    assert "in its gaps" not in told
    assert not (cluster.home.sockets / LOG_NAME).exists(), "a server was started that nobody needs"
