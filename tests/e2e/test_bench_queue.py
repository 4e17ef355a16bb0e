"""``weft bench queue`` on a real Ray cluster of two hosts, with few steps per job."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks.queue_plan import QUEUE
from benchmarks.testbed import list_namespaces, missing_reason

pytestmark = [
    pytest.mark.soak,
    pytest.mark.netns,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(missing_reason() is not None, reason=str(missing_reason())),
]


def test_every_job_of_the_queue_completes_under_every_contender_and_nothing_stays(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    before = set(list_namespaces())
    contenders = ("fifo_ddp", "elastic_overlap_crossover")
    words = [word for name in contenders for word in ("--contender", name)]
    command = [sys.executable, "-m", "weft", "bench", "queue", "--quick", "--json", "--out", str(tmp_path), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1700, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    rows = json.loads(done.stdout)["rows"]
    assert {row["contender"] for row in rows} == set(contenders)
    for row in rows:
        assert {job["name"] for job in row["jobs"]} == {job.name for job in QUEUE}
        assert all(job["took_s"] > 0 for job in row["jobs"])
        assert 0 < row["device_utilization"] <= 1
        assert row["link_utilization"] > 0
    # BERT always has two workers, so a loss is of the same samples however the job was run.
    losses = [{job["name"]: job["loss"] for job in row["jobs"] if job["model"] == "bert-base"} for row in rows]
    assert losses[0]
    for name, loss in losses[0].items():
        assert loss == pytest.approx(losses[1][name], rel=1e-5)
    assert set(list_namespaces()) <= before
