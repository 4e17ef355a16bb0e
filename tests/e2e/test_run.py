"""``weft run`` as users see it: exit codes, signals, and no process left behind."""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.hang_limit import HANG_S

WAITING = """
    import os, signal, subprocess
    loader = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    print("pids", os.getpid(), loader.pid, flush=True)
    while True:
        signal.pause()
"""


class WeftRun:
    """A running ``weft run``, with handles on the processes it made, so that a test can await their end."""

    def __init__(self, *args: str, cwd: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "weft", "run", *args],
            cwd=cwd,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            start_new_session=True,
        )
        self.handles: list[int] = []

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def hold_on_to(self, *pids: int) -> None:
        self.handles += [os.pidfd_open(pid) for pid in pids]

    def workers_ready(self, num_workers: int) -> list[int]:
        """Wait until the workers of WAITING have printed their pids."""
        pids = []
        for _ in range(num_workers):
            found = re.fullmatch(r"\[\d\] pids (\d+) (\d+)\n", self.line())
            assert found is not None
            pids += [int(pid) for pid in found.groups()]
        self.hold_on_to(*pids)
        return pids

    def all_gone(self) -> bool:
        return all(select.select([handle], [], [], HANG_S)[0] for handle in self.handles)

    def end(self) -> tuple[int, str, str]:
        out, err = self.process.communicate(timeout=HANG_S)
        return self.process.returncode, out, err

    def close(self) -> None:
        self.process.kill()
        for handle in self.handles:  # a process that outlived the test keeps the pipes open
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(handle, signal.SIGKILL)
        self.process.communicate(timeout=HANG_S)
        for handle in self.handles:
            os.close(handle)


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")")[-1].split()[1])


@pytest.fixture
def weft_run(tmp_path: Path) -> Iterator:
    runs = []

    def start(source: str, *options: str, args: tuple[str, ...] = (), cold: bool = True) -> WeftRun:
        (tmp_path / "train.py").write_text(textwrap.dedent(source))
        run = WeftRun(*(["--cold"] if cold else []), *options, "train.py", *args, cwd=tmp_path)
        runs.append(run)
        return run

    yield start
    for run in runs:
        run.close()


def test_all_workers_run_and_the_exit_code_is_0(weft_run):
    source = """
        import os, sys
        print(os.environ["RANK"], "of", os.environ["WORLD_SIZE"], *sys.argv[1:])
    """
    code, out, err = weft_run(source, "--workers", "3", args=("--workers", "9")).end()
    assert (code, sorted(out.splitlines())) == (0, [f"[{rank}] {rank} of 3 --workers 9" for rank in range(3)])
    assert "3 workers share" in err or os.cpu_count() >= 3


def test_a_script_without_torch_waits_neither_for_torch_nor_for_another_interpreter(weft_run):
    source = """
        import pathlib, sys
        words = pathlib.Path("/proc/self/cmdline").read_bytes().decode().split(chr(0))
        print("torch" in sys.modules, "weft.engines.pool" in words, sys.argv, __name__)
    """
    code, out, _ = weft_run(source, "--workers", "1", cold=False).end()
    assert (code, out) == (0, "[0] False True ['train.py'] __main__\n")


def test_no_process_outlives_a_killed_weft_run(weft_run):
    run = weft_run(WAITING, "--workers", "2")
    run.workers_ready(2)
    run.process.kill()
    assert run.all_gone()


def test_no_process_outlives_a_killed_pool_and_the_loss_is_reported(weft_run):
    run = weft_run(WAITING, "--workers", "2")
    worker = run.workers_ready(2)[0]
    os.kill(parent_of(worker), signal.SIGKILL)
    code, _, err = run.end()
    assert code == 1
    assert "process that starts the workers is gone" in err
    assert run.all_gone()


def test_workers_outlive_weft_run_with_outlive(weft_run, tmp_path):
    source = """
        import os, signal
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})  # it waits for us, however late we look
        os.write(os.open("ready", os.O_WRONLY), f"{os.getpid()}\\n".encode())
        signal.sigwait({signal.SIGUSR1})
        print("still here")
    """
    os.mkfifo(tmp_path / "ready")
    run = weft_run(source, "--workers", "1", "--outlive", "--log-dir", "logs", cold=False)
    with open(tmp_path / "ready") as ready:
        worker = int(ready.readline())
    run.hold_on_to(worker, parent_of(worker))
    run.process.kill()
    run.process.wait(HANG_S)
    os.kill(worker, signal.SIGUSR1)
    assert run.all_gone()
    assert (tmp_path / "logs" / "rank0.out").read_text() == "still here\n"


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_one_signal_is_forwarded_and_a_second_kills_the_workers(weft_run, signum):
    run = weft_run(
        """
        import os, signal
        for signum in (signal.SIGINT, signal.SIGTERM):
            signal.signal(signum, lambda *_: print("heard", flush=True))
        print("pids", os.getpid(), os.getpid(), flush=True)
        while True:
            signal.pause()
        """,
        "--workers",
        "2",
    )
    run.workers_ready(2)
    run.process.send_signal(signum)
    assert {run.line(), run.line()} == {"[0] heard\n", "[1] heard\n"}
    run.process.send_signal(signum)
    code, _, err = run.end()
    assert code == 128 + signum
    assert "killing the workers" in err
    assert run.all_gone()


def test_closing_the_output_pipe_ends_the_job(weft_run):
    run = weft_run("import itertools\nfor number in itertools.count(): print(number)", "--workers", "1")
    assert run.line() == "[0] 0\n"
    run.process.stdout.close()
    assert run.process.wait(HANG_S) == 143
    run.process.stdout = None


def test_a_failed_job_starts_again_until_it_succeeds(weft_run):
    source = """
        import os, sys
        attempt = os.environ["WEFT_ATTEMPT"]
        print("attempt", attempt)
        sys.exit(0 if attempt == "3" else 4)
    """
    code, out, err = weft_run(source, "--workers", "1", "--max-restarts", "5").end()
    assert (code, out) == (0, "[0] attempt 1\n[0] attempt 2\n[0] attempt 3\n")
    assert err.count("failed first") == 2
    assert "restart 2 of 5" in err


def test_restarts_stop_at_the_limit_and_the_cause_sets_the_exit_code(weft_run):
    code, out, err = weft_run("print('x'); raise SystemExit(4)", "--workers", "1", "--max-restarts", "1").end()
    assert (code, out) == (4, "[0] x\n[0] x\n")
    assert err.rstrip().splitlines()[-1].startswith("weft: worker 0 failed first")


def test_a_module_in_the_users_folder_does_not_shadow_torch_in_the_warm_pool(weft_run, tmp_path):
    (tmp_path / "torch.py").write_text("raise SystemError('not the torch meant')")  # must not shadow the pool's
    code, out, err = weft_run(
        "import sys, weft; print('torch._dynamo' in sys.modules)", "--workers", "1", cold=False
    ).end()
    assert (code, out) == (0, "[0] True\n"), err


@pytest.mark.parametrize(
    ("args", "complaint"),
    [
        (["--workers", "0", "train.py"], "--workers 0: expected a whole number"),
        (["--workers", "2"], "no script to run"),
        (["missing.py"], "missing.py: no such file"),
        (["--checkpoint-dir", "train.py/ckpt", "train.py"], "train.py/ckpt: cannot be created"),
        (["--outlive", "train.py"], "--outlive needs --log-dir"),
    ],
)
def test_bad_usage_is_one_line_and_exit_code_2(args, complaint, tmp_path):
    (tmp_path / "train.py").touch()
    run = WeftRun(*args, cwd=tmp_path)
    code, out, err = run.end()
    assert (code, out) == (2, "")
    assert complaint in err
    assert err.count("\n") == 1


def test_the_supervising_process_never_loads_torch():
    code = "import sys, weft.cli.run; print([name for name in ('torch', 'numpy') if name in sys.modules])"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    assert shown.stdout == "[]\n"
