"""A lease server and workers as processes of their own, so that they can be killed, stopped and woken.

This file run as a program with SOCKET and JOB is such a worker: it does what it reads, a word a line, and answers.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hang_limit import HANG_S
from weft.crossover.lease_client import LeaseGate
from weft.crossover.lease_launch import status
from weft.crossover.lease_messages import Join
from weft.errors import LeaseError

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1] / "src")}


class LeaseWorker:
    """One job's worker at the other end of two pipes."""

    def __init__(self, path: Path, job: str) -> None:
        self.job = job
        self.process = subprocess.Popen(
            [sys.executable, __file__, str(path), job],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=ENVIRONMENT,
        )
        assert self.answer() == "joined"

    def tell(self, command: str) -> None:
        """Have it do something; the answer is not waited for."""
        assert self.process.stdin is not None
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()

    def answer(self) -> str:
        """What it says next."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def do(self, command: str) -> str:
        """Have it do something and wait until it is done."""
        self.tell(command)
        return self.answer()

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def end(self) -> None:
        """Whatever state it is in."""
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()


class LeaseServer:
    """A server that can be killed and started again at the same place."""

    def __init__(self, path: Path, *options: str) -> None:
        self.path = path
        self._options = options
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "weft.crossover.server", "--socket", str(self.path), *self._options],
            stderr=subprocess.DEVNULL,
            env=ENVIRONMENT,
        )
        wait_until(lambda: self.status() is not None)

    def status(self) -> dict[str, Any] | None:
        try:
            devices: dict[str, Any] = status(self.path)["devices"]
        except LeaseError:
            return None
        return devices

    def device(self, name: str = "0") -> dict[str, Any]:
        """What the server knows of a device."""
        devices = self.status()
        assert devices is not None, "the server does not answer"
        return dict(devices.get(name, {"holder": None, "jobs": [], "overruled": 0, "grants": 0, "follows": False}))

    def waiting(self) -> list[str]:
        """Jobs that wait for device 0."""
        return [job["job"] for job in self.device()["jobs"] if job["waiting"]]

    def jobs(self) -> set[str]:
        return {job["job"] for job in self.device()["jobs"]}

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@contextmanager
def lease_server(path: Path, *options: str) -> Iterator[LeaseServer]:
    server = LeaseServer(path, *options)
    try:
        yield server
    finally:
        server.kill()


@contextmanager
def lease_workers(path: Path, *jobs: str) -> Iterator[list[LeaseWorker]]:
    workers: list[LeaseWorker] = []
    try:
        for job in jobs:
            workers.append(LeaseWorker(path, job))
        yield workers
    finally:
        for worker in workers:
            worker.end()


def wait_until(condition: Any) -> None:
    """For states of another process that cannot be awaited."""
    give_up_s = time.monotonic() + HANG_S
    while not condition():
        assert time.monotonic() < give_up_s, "it never came to be"
        time.sleep(0.002)


def _serve_commands(path: str, job: str) -> None:
    gate = LeaseGate(path, Join(job, "0"))
    print("joined", flush=True)
    for line in sys.stdin:
        match line.split():
            case ["acquire" | "border"]:
                gate.acquire()
                print("acquired", flush=True)
            case ["release"]:
                gate.release()
                print("released", flush=True)
            case ["compute"]:  # until asked to give way once
                turns = gate._link.token if gate._link else 0
                while gate._link is not None and gate._link.token == turns:
                    gate.acquire()
                print("interrupted", flush=True)
            case ["shared"]:
                print(gate.is_shared, flush=True)
            case ["fork"]:
                # A child that keeps every descriptor, as a data loader's workers may.
                assert gate._link is not None
                kept = os.dup(gate._link._connection.fileno())
                child = os.fork()
                if child == 0:
                    signal.pause()
                os.close(kept)
                print(child, flush=True)


if __name__ == "__main__":
    _serve_commands(*sys.argv[1:])
