"""A process between the controller and the workers is stopped by a signal: the user is told which."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.contract.benches import LocalBench, said, start, until, wait_for
from tests.crash.test_engine_kill import keeper_of, zygote_of

from weft.core.events import Fate


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[LocalBench]:
    made = LocalBench(tmp_path, warm=False)
    yield made
    made.close()


def test_a_stopped_zygote_is_named_and_the_job_runs_once_it_resumes(bench: LocalBench) -> None:
    zygote = zygote_of(bench)
    os.kill(zygote, signal.SIGSTOP)
    start(bench, "job", "finish", devices=(0,))
    until(lambda: f"kill -CONT {zygote}" in bench.engine.hints().get(("job", 1), ""), bench)
    os.kill(zygote, signal.SIGCONT)
    assert wait_for(bench, "job").fate is Fate.COMPLETED
    assert bench.engine.hints() == {}


def test_a_stopped_keeper_is_named(bench: LocalBench) -> None:
    start(bench, "job", "save", devices=(0,))
    said(bench, "job", "training")
    keeper = keeper_of(bench, "job")
    os.kill(keeper, signal.SIGSTOP)
    until(lambda: f"kill -CONT {keeper}" in bench.engine.hints().get(("job", 1), ""), bench)
    os.kill(keeper, signal.SIGCONT)
    bench.engine.stop("job", 1)
    assert wait_for(bench, "job").fate is Fate.STOPPED
