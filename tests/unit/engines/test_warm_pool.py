"""A forked worker is as good as a fresh one: nothing the pool did shows in it."""

import os
import subprocess
import sys
import textwrap

import pytest
from tests.hang_limit import HANG_S
from tests.unit.engines.test_local_store import check_rendezvous

from weft.engines.pool_client import PoolClient

pytest.importorskip("torch")


@pytest.fixture(scope="module")
def warm_pool():
    pool = PoolClient.launch(warm=True, environment=os.environ)
    pool.receive()  # ready: torch is imported
    yield pool
    pool.close()


@pytest.fixture
def bench(bench, warm_pool):
    bench.pool = warm_pool
    return bench


def test_the_pool_has_torch_and_no_extra_threads(warm_pool):
    assert warm_pool.cold_reason == ""
    folder = f"/proc/{warm_pool.process.pid}"
    assert len(os.listdir(f"{folder}/task")) == 1
    with open(f"{folder}/maps") as maps:
        assert "libtorch" in maps.read()


def test_the_script_cannot_tell_that_it_was_forked(bench, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "beside_the_script.py").write_text("FOUND = True")
    outcome = bench.run(
        """
        import os, sys
        import __main__
        from beside_the_script import FOUND
        assert __name__ == "__main__" and __main__.FOUND
        assert sys.argv[1:] == ["--lr", "a b"], sys.argv
        assert os.path.basename(os.getcwd()) == "elsewhere"
        assert os.environ["FLAVOUR"] == "warm"
        assert sys.stdin.read() == ""
        assert os.getpgid(0) == os.getpid()
        assert len(os.sched_getaffinity(0)) == 1
        print("torch was there:", "torch" in sys.modules, "in", len(os.listdir("/proc/self/task")), "thread")
        """,
        "--lr",
        "a b",
        environment={"FLAVOUR": "warm"},
        cwd=tmp_path / "elsewhere",
    )
    assert outcome.exit_code == 0, outcome.report
    assert sorted(bench.console.stdout) == [f"[{rank}] torch was there: True in 1 thread" for rank in range(2)]


def test_training_works_after_the_fork(bench):
    """OpenMP, autograd's threads and a process group all start in the worker; in the pool they never did."""
    outcome = bench.run(
        """
        import torch, torch.distributed as dist
        from torch.nn.parallel import DistributedDataParallel
        assert torch.get_num_threads() == 2
        dist.init_process_group("gloo")
        torch.ones(300, 300).square()  # large enough for OpenMP to start its threads
        model = DistributedDataParallel(torch.nn.Linear(8, 8))
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(3):
            model(torch.ones(4, 8)).square().mean().backward()
            optimizer.step()
        dist.destroy_process_group()
        """,
        environment={"OMP_NUM_THREADS": "2"},
    )
    assert outcome.exit_code == 0, outcome.report


def test_a_forked_scripts_rendezvous_is_not_reachable_from_other_networks(bench):
    check_rendezvous(bench)


def test_workers_draw_different_random_numbers(bench):
    outcome = bench.run(
        """
        import random, tempfile, numpy
        print(random.random())
        print(numpy.random.rand())
        """
    )
    assert outcome.exit_code == 0, outcome.report
    drawn = [line.split()[1] for line in bench.console.stdout]
    assert len(set(drawn)) == 4


LOADER = """
    import os, signal, sys
    import torch
    from torch.utils.data import DataLoader, Dataset

    class Numbers(Dataset):
        def __len__(self):
            return 8
        def __getitem__(self, index):
            if index == 5 and os.environ["RANK"] == "1" and "die" in sys.argv:
                os.kill(os.getpid(), signal.SIGKILL)
            return index

    if __name__ == "__main__":
        loader = DataLoader(Numbers(), num_workers=1, multiprocessing_context=sys.argv[1])
        print(sum(int(batch) for batch in loader))
        if "die" in sys.argv:
            signal.pause()  # for a peer that will never come
"""


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_data_loader_workers_start_in_a_forked_worker(bench, context):
    outcome = bench.run(LOADER, context, workers=1)
    assert outcome.exit_code == 0, outcome.report
    assert bench.console.stdout == ["[0] 28"]


def test_a_data_loader_worker_that_dies_is_the_first_cause(bench):
    outcome = bench.run(LOADER, "fork", "die")
    assert outcome.exit_code == 1
    assert outcome.report[0].startswith("worker 1 failed first")
    assert "DataLoader worker" in outcome.report[0]


def test_exit_handlers_and_threads_of_the_script_finish(bench):
    outcome = bench.run(
        """
        import atexit, ctypes, sys, threading
        atexit.register(print, "exit handler")
        threading.Thread(target=lambda: print("thread")).start()
        ctypes.CDLL(None).puts(b"from C")
        sys.stdout.write("no newline at the end")
        """,
        workers=1,
    )
    assert outcome.exit_code == 0
    said = "".join(line.removeprefix("[0] ") for line in bench.console.stdout)
    for words in ("exit handler", "thread", "from C", "no newline at the end"):
        assert words in said


def test_a_syntax_error_is_shown_as_python_would(bench):
    outcome = bench.run("def train(:\n    pass", workers=1)
    assert outcome.exit_code == 1
    assert "SyntaxError" in outcome.report[0]
    assert not any("weft/engines" in line for line in bench.console.stderr)


def test_an_import_that_starts_a_thread_prevents_forking(tmp_path):
    (tmp_path / "busy_module.py").write_text(
        "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n"
    )
    code = textwrap.dedent(
        """
        from weft.engines.pool import preload
        assert preload(["a_module_that_is_not_installed", "json"]) == ""
        print(preload(["json", "busy_module"]))
        """
    )
    shown = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([*sys.path, str(tmp_path)])},
        capture_output=True,
        text=True,
        check=True,
        timeout=HANG_S,
    )
    assert "importing busy_module started a thread" in shown.stdout
