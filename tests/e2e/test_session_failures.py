"""One worker of a training job fails: the others end soon, the cause comes first, no process is left behind."""

from __future__ import annotations

import os
import re
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from test_run import WeftRun

TRAINING = """
    import multiprocessing, os, signal, sys, time
    import torch
    import weft

    FAULT = os.environ["FAULT"]
    guilty = os.environ["RANK"] == "1"

    class Samples:
        def __len__(self):
            return 64

        def __getitem__(self, index):
            if FAULT == "loader" and guilty and index == 44:
                os.kill(os.getpid(), signal.SIGKILL)
            return torch.full((4,), float(index))

    if FAULT == "missing" and guilty:
        print("pids", os.getpid(), flush=True)
        signal.pause()

    def go_wrong():
        if FAULT == "raise":
            raise ValueError("bad sample")
        if FAULT == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if FAULT == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        while FAULT == "loop":
            time.monotonic()
        if FAULT == "sleep":
            time.sleep(1000)

    if FAULT == "missing":
        print("pids", os.getpid(), flush=True)
    with weft.session() as run:
        model = torch.nn.Linear(4, 4)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
        if os.environ["WRAP"] == "ddp":
            model = torch.nn.parallel.DistributedDataParallel(model)
        else:
            weft.overlap(model, optimizer, tune=False)
        data = run.loader(Samples(), batch_size=8, num_workers=1, shuffle=False)
        run.resume(model=model, optimizer=optimizer, data=data)
        for x in run.steps(data, epochs=1_000_000):
            if run.step == 0:
                children = [child.pid for child in multiprocessing.active_children()]
                print("pids", os.getpid(), *children, flush=True)
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
            if run.step == 12 and guilty:
                go_wrong()
"""

Start = Callable[..., WeftRun]


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    runs = []
    (tmp_path / "train.py").write_text(textwrap.dedent(TRAINING))

    def begin(fault: str, *options: str, wrap: str = "overlap") -> WeftRun:
        monkeypatch.setenv("FAULT", fault)
        monkeypatch.setenv("WRAP", wrap)
        runs.append(WeftRun("--workers", "2", *options, "train.py", cwd=tmp_path))
        return runs[-1]

    yield begin
    for run in runs:
        run.close()


def end_of(run: WeftRun) -> tuple[int, list[str]]:
    """Its exit code and weft's messages, once all its processes are gone."""
    for _ in range(2):
        for pid in map(int, run.line().split()[2:]):
            try:
                run.hold_on_to(pid)
            except ProcessLookupError:
                continue
    code, _, err = run.end()
    assert run.all_gone()
    return code, [line.removeprefix("weft: ") for line in err.splitlines() if line.startswith("weft: ")]


def cause(said: list[str]) -> str:
    """The first line of the report."""
    return next(line for line in said if "failed first" in line)


@pytest.mark.parametrize("wrap", ["overlap", "ddp"])
@pytest.mark.parametrize(
    ("fault", "code", "words"),
    [("raise", 1, "ValueError: bad sample"), ("kill", 137, "it was killed by SIGKILL")],
)
def test_a_worker_that_fails_is_the_cause_and_ends_the_job(
    start: Start, fault: str, code: int, words: str, wrap: str
) -> None:
    found, said = end_of(start(fault, wrap=wrap))
    assert found == code
    assert cause(said).startswith("worker 1 failed first")
    assert words in cause(said)


def test_a_stopped_worker_is_detected(start: Start) -> None:
    code, said = end_of(start("stop", "--hang-s", "1"))
    assert code == 124
    assert cause(said).startswith("worker 1 failed first")
    assert "paused by a signal" in cause(said)


@pytest.mark.parametrize(("fault", "wrap"), [("loop", "overlap"), ("sleep", "ddp")])
def test_a_hanging_worker_is_detected_and_its_stack_is_shown(start: Start, fault: str, wrap: str) -> None:
    code, said = end_of(start(fault, "--stall-s", "3", wrap=wrap))
    assert code == 124
    assert cause(said).startswith("worker 1 failed first")
    report = "\n".join(said)
    # The limit grows with the steps measured so far, which a busy machine makes long.
    assert re.search(r"worker 1 hangs: it has not finished a step in \d+ s", report), report
    assert "in go_wrong" in report


def test_a_data_loader_that_dies_is_named(start: Start) -> None:
    code, said = end_of(start("loader"))
    assert code == 1
    assert cause(said).startswith("worker 1 failed first")
    assert "DataLoader worker" in cause(said)


def test_a_worker_that_never_joins_is_named_when_time_is_up(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_START_TIMEOUT_S", "2")
    code, said = end_of(start("missing"))
    assert code == 1
    assert "waited 2 s for worker(s) 1" in cause(said)


def test_the_training_of_these_tests_runs_when_nothing_goes_wrong(start: Start) -> None:
    run = start("nothing", "--stall-s", "60")
    for _ in range(2):
        run.hold_on_to(*map(int, run.line().split()[2:]))
    os.kill(run.process.pid, 15)
    code, _, err = run.end()
    assert code == 75, err
    assert run.all_gone()
