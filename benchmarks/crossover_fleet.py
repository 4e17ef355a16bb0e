"""The processes of a pair on the testbed: a lease server per host, and one worker per job and host.

Workers read orders from standard input and answer with one JSON object per line; all other output is kept in case one
of them fails.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from pathlib import Path
from typing import Any

from benchmarks.testbed import HostFailed, Testbed
from benchmarks.testbed_plan import MASTER_PORT, worker_command, worker_environment
from weft.core import worker_environment as names

ROOT = Path(__file__).resolve().parents[1]
LEAD_PORT = 29300
JOBS = ("A", "B")
ANSWER_WITHIN_S = 240.0
START_WITHIN_S = 120.0  # Python starts slowly on a busy machine
NUM_LINES_KEPT = 30

Message = dict[str, Any]


class Fleet:
    """Everything that runs on the hosts of ``bed`` while the ``with`` block lasts."""

    def __init__(self, bed: Testbed) -> None:
        self._bed = bed
        self._folder = tempfile.TemporaryDirectory(prefix="weft-bench-")
        self._servers: list[subprocess.Popen[bytes]] = []
        self._workers: dict[tuple[str, int], _Process] = {}

    def __enter__(self) -> Fleet:
        key = secrets.token_hex(16)
        try:
            for host in range(self._bed.plan.num_hosts):
                self._servers.append(self._start_server(host))
            for job in JOBS:
                for host in range(self._bed.plan.num_hosts):
                    self._workers[job, host] = self._start_worker(job, host, key)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def ask(self, orders: dict[str, Message]) -> dict[str, list[Message]]:
        """Give each named job its order at once; the answers of its workers by host."""
        for job, order in orders.items():
            for host in range(self._bed.plan.num_hosts):
                self._workers[job, host].tell(order)
        deadline_s = time.monotonic() + ANSWER_WITHIN_S
        answers = {
            job: [self._workers[job, host].answer(deadline_s) for host in range(self._bed.plan.num_hosts)]
            for job in orders
        }
        for host, server in enumerate(self._servers):
            if server.poll() is not None:
                raise HostFailed(f"the lease server of host {host} has ended: {self._server_words(host)}")
        return answers

    def close(self) -> None:
        for worker in self._workers.values():
            worker.end()
        for server in self._servers:
            _end(server)
        self._folder.cleanup()

    def _start_server(self, host: int) -> subprocess.Popen[bytes]:
        command = (sys.executable, "-m", "weft.crossover.server", "--socket", str(self._socket(host)))
        with open(self._socket(host).with_suffix(".log"), "wb") as log:
            server = subprocess.Popen(
                worker_command(self._bed.plan, host, self._bed.core_of(host), command),
                env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        deadline_s = time.monotonic() + START_WITHIN_S
        while not self._socket(host).exists():
            if server.poll() is not None or time.monotonic() > deadline_s:
                raise HostFailed(f"the lease server of host {host} did not start: {self._server_words(host)}")
            time.sleep(0.02)  # there is no event for it
        return server

    def _server_words(self, host: int) -> str:
        lines = self._socket(host).with_suffix(".log").read_text(errors="replace").splitlines()
        return "\n    ".join(lines[-NUM_LINES_KEPT:]) or "(no output)"

    def _start_worker(self, job: str, host: int, key: str) -> _Process:
        plan = self._bed.plan
        environment = {
            **os.environ,
            **worker_environment(plan, host),
            "MASTER_PORT": str(MASTER_PORT + JOBS.index(job)),
            "PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "src"))),
            names.JOB_ID: job,
            names.LEASE_DEVICE: "0",
            names.LEASE_LEAD: f"{plan.address(0)}:{LEAD_PORT}",
            names.LEASE_KEY: key,
            # Not WEFT_LEASE: a cell says whether its jobs share.
            "WEFT_BENCH_LEASE": str(self._socket(host)),
        }
        command = (sys.executable, "-m", "benchmarks.crossover_worker")
        return _Process(
            f"job {job} on host {host}",
            subprocess.Popen(
                worker_command(plan, host, self._bed.core_of(host), command),
                env=environment,
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                start_new_session=True,
            ),
        )

    def _socket(self, host: int) -> Path:
        return Path(self._folder.name, f"host{host}.sock")


class _Process:
    """One worker and its output."""

    def __init__(self, name: str, process: subprocess.Popen[str]) -> None:
        self._name = name
        self._process = process
        self._answers: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        self._said: deque[str] = deque(maxlen=NUM_LINES_KEPT)
        self._reader = threading.Thread(target=self._read, name=name, daemon=True)
        self._reader.start()

    def tell(self, order: Message) -> None:
        if self._process.stdin is None or self._process.poll() is not None:
            raise self._failure("is gone")
        try:
            self._process.stdin.write(json.dumps(order) + "\n")
            self._process.stdin.flush()
        except OSError:
            raise self._failure("is gone") from None

    def answer(self, deadline_s: float) -> Message:
        try:
            answer = self._answers.get(timeout=max(0.0, deadline_s - time.monotonic()))
        except queue.Empty:
            raise self._failure(f"did not answer within {ANSWER_WITHIN_S:g} s") from None
        if answer is None:
            raise self._failure("ended")
        return answer

    def end(self) -> None:
        _end(self._process)
        self._reader.join()
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):  # unread output
                self._process.stdin.close()

    def _read(self) -> None:
        if self._process.stdout is not None:
            with self._process.stdout:
                for line in self._process.stdout:
                    if line.startswith("{"):
                        self._answers.put(json.loads(line))
                    else:
                        self._said.append(line.rstrip("\n"))
        self._answers.put(None)

    def _failure(self, what: str) -> HostFailed:
        words = "\n    ".join(self._said) or "(no output)"
        return HostFailed(f"{self._name} {what}; its last output:\n    {words}")


def _end(process: subprocess.Popen[Any]) -> None:
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    process.wait()
