"""Forked jobs: torch is already imported, workers find each other, and no trace of the zygote is left."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.contract.benches import LocalBench, wait_for

from weft.core.engine import StartOrder
from weft.core.events import Fate
from weft.core.job import Launch

pytestmark = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs torch")


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalBench]:
    made = LocalBench(tmp_path_factory.mktemp("home"), warm=True)
    yield made
    made.close()


def test_a_forked_worker_has_torch_one_thread_and_its_own_files(bench: LocalBench) -> None:
    source = """
threads, files = os.listdir('/proc/self/task'), os.listdir('/proc/self/fd')
said(f"{'torch' in sys.modules}, {len(threads)} thread, {len(files)} files, {os.path.basename(sys.argv[0])}")
"""
    bench.engine.start(StartOrder("forked", 1, (0,), bench.python(source, name="forked")))
    assert wait_for(bench, "forked").fate is Fate.COMPLETED
    # Input, output, errors, the failure report, and the folder being listed.
    assert bench.output("forked", 1, 0) == "True, 1 thread, 5 files, forked.py\n"


def test_workers_train_together_at_any_size(bench: LocalBench) -> None:
    source = """
import torch, torch.distributed as dist
dist.init_process_group('gloo')
total = torch.ones(4)
dist.all_reduce(total)
said(int(total[0]))
dist.destroy_process_group()
"""
    launch = bench.python(source, name="train")
    for attempt, devices in enumerate([(0,), (1, 2), (0, 1, 2)], 1):
        bench.engine.start(StartOrder("train", attempt, devices, launch))
        ended = wait_for(bench, "train", attempt)
        assert ended.fate is Fate.COMPLETED, ended.reason
        assert [bench.output("train", attempt, rank) for rank in range(len(devices))] == [f"{len(devices)}\n"] * len(
            devices
        )


def test_a_variable_read_at_startup_gets_a_fresh_interpreter(bench: LocalBench) -> None:
    source = "said(f\"{'torch' in sys.modules} {hash('weft')}\")"
    launch = bench.python(source, name="fresh", PYTHONHASHSEED="7")
    for job in ("seven", "seven-again"):
        bench.engine.start(StartOrder(job, 1, (0,), launch))
        assert wait_for(bench, job).fate is Fate.COMPLETED
    assert bench.output("seven", 1, 0).startswith("False ")
    assert bench.output("seven", 1, 0) == bench.output("seven-again", 1, 0)


def test_a_script_started_by_a_shell_finds_its_peers(bench: LocalBench) -> None:
    (bench.home / "peers.py").write_text(
        "import torch.distributed as dist\ndist.init_process_group('gloo')\nprint(dist.get_world_size())\n"
        "dist.barrier()\ndist.destroy_process_group()\n"
    )
    (bench.home / "train.sh").write_text("exec python3 peers.py\n")
    path = {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin"}
    bench.engine.start(StartOrder("shell", 1, (0, 1), Launch(("bash", "train.sh"), str(bench.home), path)))
    ended = wait_for(bench, "shell")
    assert ended.fate is Fate.COMPLETED, ended.reason
    assert bench.output("shell", 1, 1) == "2\n"
