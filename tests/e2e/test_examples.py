"""The training example, started as the docs say: it learns, saves, and resumes with a different number of workers."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.hang_limit import HANG_S

pytest.importorskip("torch")

EXAMPLES = Path(__file__).parents[2] / "examples"


def torchrun(num_workers: int, script: str, *arguments: str) -> str:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(num_workers)]
    done = subprocess.run(
        [*command, str(EXAMPLES / script), *arguments],
        capture_output=True,
        text=True,
        timeout=HANG_S,
        env={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def losses(output: str) -> dict[int, float]:
    return {int(step): float(loss) for step, loss in re.findall(r"^step (\d+): loss (\S+)$", output, re.MULTILINE)}


@dataclass(frozen=True)
class FirstRun:
    output: str
    checkpoint: Path
    traces: list[str]


@pytest.fixture(scope="module")
def first_run(tmp_path_factory: pytest.TempPathFactory) -> FirstRun:
    """80 steps on two workers, with a checkpoint and a timeline of each worker."""
    folder = tmp_path_factory.mktemp("example")
    checkpoint = folder / "run.pt"
    output = torchrun(2, "train_overlap.py", "--steps", "80", "--checkpoint", str(checkpoint), "--trace", str(folder))
    return FirstRun(output, checkpoint, [str(folder / f"rank{rank}.json") for rank in range(2)])


def test_the_training_example_learns_and_resumes_from_its_checkpoint_on_three_workers(first_run: FirstRun) -> None:
    first = losses(first_run.output)
    assert list(first) == [20, 40, 60, 80]
    assert first[80] < first[20] / 2
    second = losses(torchrun(3, "train_overlap.py", "--steps", "20", "--checkpoint", str(first_run.checkpoint)))
    assert list(second) == [100]
    assert second[100] < first[40]


def test_weft_trace_reads_the_examples_timelines(first_run: FirstRun) -> None:
    command = [sys.executable, "-m", "weft", "trace", *first_run.traces]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG_S, check=False)
    assert done.returncode == 0, done.stderr
    assert "worker 0" in done.stdout
    assert "worker 1" in done.stdout
