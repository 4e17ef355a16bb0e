"""Tests whose body runs on N worker processes at once.

    @on_workers(2)
    def test_two_workers_agree():
        ...                     # runs in two processes, each a rank of a fresh gloo process group

Processes are forked from a server that has imported torch, and kept for the next test; the process group is new for
every test.  A test gets its fixtures and parameters as usual (they are sent pickled).  It fails if any rank fails; a
rank that does not return in time is killed with all the others, and the error names the test.
"""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import gc
import importlib
import inspect
import multiprocessing
import multiprocessing.context
import multiprocessing.forkserver
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from hang_limit import HANG_S

# Once one rank has failed the others usually wait for it in vain.
PATIENCE_AFTER_FAILURE_S = 5.0
PATIENCE_FOR_STACKS_S = 20.0
# Network threads of models that a failed or unusual test left behind wake up a hundred times a second: with hundreds of
# them, the tests of a long file took ten times as long.  Fresh processes cost a few seconds.
MAX_THREADS = 80
# One thread each, also in the server: it must not start any before it forks, and four files run at once on two cores.
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
LOADED = ["pytest", "torch._dynamo", "torch.distributed.checkpoint.state_dict", "weft.overlap", "weft.worker"]


class WorkerError(AssertionError):
    """What went wrong on which ranks, with their tracebacks."""


@dataclass(frozen=True)
class Task:
    """One rank's part in a call."""

    module: str
    function: str
    arguments: dict[str, Any]
    rank: int
    num_workers: int
    rendezvous: str


@dataclass(frozen=True)
class Outcome:
    value: Any = None
    error: str = ""
    skipped: str = ""


class Fleet:
    """Worker processes, as many as any call so far has needed."""

    def __init__(self) -> None:
        self._members: list[tuple[BaseProcess, Connection]] = []

    def run(self, module: str, function: str, arguments: dict[str, Any], num_workers: int, limit_s: float) -> list[Any]:
        """Call ``function`` of ``module`` on every rank; what each returned."""
        with tempfile.TemporaryDirectory() as folder:
            rendezvous = str(Path(folder, "rendezvous"))
            if any(_num_threads(process.pid) > MAX_THREADS for process, _ in self._members):
                self.stop()
            self._grow(num_workers)
            for rank, (_, pipe) in enumerate(self._members[:num_workers]):
                pipe.send(Task(module, function, arguments, rank, num_workers, rendezvous))
            outcomes = self._collect(num_workers, limit_s)
        silent = [rank for rank in range(num_workers) if rank not in outcomes]
        failed = {rank: outcome.error for rank, outcome in sorted(outcomes.items()) if outcome.error}
        if silent or failed:
            told = [f"rank {rank}:\n{error}" for rank, error in failed.items()]
            for rank in silent:
                told.append(f"rank {rank} did not come back from {module}.{function} and was killed; it was here:")
                told.append(self._stacks(rank))
            self.stop()  # whatever is still under way in there must not reach the next test
            raise WorkerError("\n".join(told))
        reasons = {outcome.skipped for outcome in outcomes.values() if outcome.skipped}
        if reasons:
            import pytest

            pytest.skip(", ".join(sorted(reasons)))
        return [outcomes[rank].value for rank in range(num_workers)]

    def stop(self) -> None:
        for process, pipe in self._members:
            process.kill()
            pipe.close()
        for process, _ in self._members:
            process.join()
            _stack_file(process.pid).unlink(missing_ok=True)
        self._members.clear()

    def _stacks(self, rank: int) -> str:
        """Where a worker's threads are, asked by a signal: it cannot answer by itself."""
        process, _ = self._members[rank]
        report = _stack_file(process.pid)
        if process.is_alive() and report.exists():
            os.kill(process.pid or 0, signal.SIGUSR1)
            # The answer comes from a signal handler, in a thread of low priority: there is nothing to wait on.
            deadline = time.monotonic() + PATIENCE_FOR_STACKS_S
            while not report.stat().st_size and time.monotonic() < deadline:
                time.sleep(0.1)
            time.sleep(0.5)  # the rest of it
        return report.read_text() if report.exists() else "(its process is gone)"

    def _grow(self, num_workers: int) -> None:
        context = _fork_server()
        while len(self._members) < num_workers:
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs,), daemon=True)
            process.start()
            theirs.close()
            self._members.append((process, ours))

    def _collect(self, num_workers: int, limit_s: float) -> dict[int, Outcome]:
        ranks = {pipe: rank for rank, (_, pipe) in enumerate(self._members[:num_workers])}
        outcomes: dict[int, Outcome] = {}
        deadline = time.monotonic() + limit_s
        while ranks and (left_s := deadline - time.monotonic()) > 0:
            for pipe in wait(list(ranks), left_s):
                assert isinstance(pipe, Connection)
                rank = ranks.pop(pipe)
                try:
                    outcomes[rank] = pipe.recv()
                except EOFError:
                    outcomes[rank] = Outcome(error="the process died")
                if outcomes[rank].error:
                    deadline = min(deadline, time.monotonic() + PATIENCE_AFTER_FAILURE_S)
        return outcomes


FLEET = Fleet()


def on_workers(num_workers: int, limit_s: float = HANG_S) -> Callable[[Callable[..., Any]], Callable[..., None]]:
    """Run the body of a test on ``num_workers`` ranks of a fresh process group."""

    def decorate(body: Callable[..., Any]) -> Callable[..., None]:
        @functools.wraps(body)
        def test(**arguments: Any) -> None:
            FLEET.run(body.__module__, body.__qualname__, arguments, num_workers, limit_s)

        test.on_worker = body  # type: ignore[attr-defined]
        # pytest asks for the parameters by name and must see the body's own.
        test.__signature__ = inspect.signature(body)  # type: ignore[attr-defined]
        return test

    return decorate


def call_on_workers(num_workers: int, function: Callable[..., Any], limit_s: float = HANG_S, **kw: Any) -> list:
    """What an importable function returns on each rank, for tests that compare numbers of workers."""
    return FLEET.run(function.__module__, function.__qualname__, kw, num_workers, limit_s)


def _num_threads(pid: int | None) -> int:
    with contextlib.suppress(OSError):
        return len(os.listdir(f"/proc/{pid}/task"))
    return 0


def _stack_file(pid: int | None) -> Path:
    return Path(tempfile.gettempdir(), f"weft-test-worker-{pid}.stacks")


@functools.cache
def _fork_server() -> multiprocessing.context.ForkServerContext:
    """Imports torch once: a worker of its own import takes seconds, a fork of this one milliseconds."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(LOADED)
    before = {name: os.environ.get(name) for name in ONE_THREAD}
    os.environ.update(ONE_THREAD)
    try:
        multiprocessing.forkserver.ensure_running()
    finally:
        for name, value in before.items():
            os.environ.pop(name, None) if value is None else os.environ.update({name: value})
    return context


def _serve(pipe: Connection) -> None:
    """A worker process: one task after the other until the pipe closes."""
    with _stack_file(os.getpid()).open("w") as stacks:
        faulthandler.register(signal.SIGUSR1, file=stacks)
        _perform_all(pipe)


def _perform_all(pipe: Connection) -> None:
    os.environ.update(GLOO_SOCKET_IFNAME="lo")
    import torch

    torch.set_num_threads(1)
    num_modules = 0
    while True:
        if num_modules != (num_modules := len(sys.modules)):
            gc.freeze()  # what was imported stays: collecting after each test then takes milliseconds
        try:
            task = pipe.recv()
        except EOFError:
            os._exit(0)  # exit handlers of abandoned handles would wait for peers that are gone
        pipe.send(_perform(task))


def _perform(task: Task) -> Outcome:
    import warnings

    import pytest
    import torch
    import torch.distributed as dist

    try:
        function = getattr(importlib.import_module(task.module), task.function)
        function = getattr(function, "on_worker", function)
        torch.manual_seed(0)
        dist.init_process_group(
            "gloo", init_method=f"file://{task.rendezvous}", rank=task.rank, world_size=task.num_workers
        )
        # A body that leaves this group (or skips) at once would close it on a rank that is still connecting.
        dist.barrier()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            value = function(**task.arguments)
        if dist.is_initialized():
            dist.barrier()  # no rank leaves while another still sends to it
        return Outcome(value=value)
    except pytest.skip.Exception as reason:
        return Outcome(skipped=str(reason))
    except BaseException:
        return Outcome(error=traceback.format_exc())
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
        # Models without detach() hold their connections in cycles, and each has threads that wake up all the time.
        gc.collect()
        sys.stdout.flush()


def gathered(value: Any) -> Sequence[Any]:
    """Every rank's ``value``, on every rank."""
    import torch.distributed as dist

    values: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values
