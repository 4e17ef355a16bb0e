"""Plays one queue on a temporary controller: submits the jobs as they arrive and records their completion times."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from weft.client import Client
from weft.core.status_rows import FINAL_STATES, JobDetail
from weft.core.submission import Submission
from weft.daemon.options import ControllerOptions
from weft.demo.queue import QueuedJob
from weft.errors import ControllerError, NoControllerError

POLL_S = 0.1
START_TIMEOUT_S = 30.0
EXIT_TIMEOUT_S = 20.0


@dataclass(frozen=True, slots=True)
class Completion:
    """How long one job took."""

    name: str
    arrived_s: float
    """Since the first job arrived."""
    took_s: float
    """From submission to completion."""
    restarts: int


@dataclass(frozen=True, slots=True)
class Played:
    """A queue, played from the first arrival to the last completion."""

    completions: tuple[Completion, ...]

    @property
    def mean_s(self) -> float:
        return sum(job.took_s for job in self.completions) / len(self.completions)

    @property
    def makespan_s(self) -> float:
        return max(job.arrived_s + job.took_s for job in self.completions)


# (seconds since the first arrival, jobs submitted so far)
OnLook = Callable[[float, Sequence[JobDetail]], None]


@contextlib.contextmanager
def temporary_controller(policy: str, *, num_devices: int | None = None, hold_s: float = 2.0) -> Iterator[Client]:
    """A controller in a temporary folder.  Its jobs, processes, and folder are gone after the block."""
    home = Path(tempfile.mkdtemp(prefix="weft-demo-"))
    options = ControllerOptions(policy=policy, port=0, devices=num_devices, hold_s=hold_s, grace_s=10.0)
    with (home / "controller.log").open("wb") as log:
        # A session of its own: Ctrl-C reaches only the demo, which then shuts the controller down cleanly.
        process = subprocess.Popen(
            options.command("-P"),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**os.environ, "WEFT_HOME": str(home)},
        )
    client = Client(home)
    try:
        _wait_until_it_responds(client, process, home / "controller.log")
        yield client
    finally:
        _end(client, process)
        shutil.rmtree(home, ignore_errors=True)


def play(
    client: Client,
    queue: Sequence[QueuedJob],
    *,
    min_workers: int,
    max_workers: int,
    on_look: OnLook = lambda now_s, rows: None,
) -> Played:
    """Run every job with these numbers of workers; see :func:`play_arrivals`."""
    cwd = os.getcwd()
    arrivals = [(job.arrives_s, job.submission(cwd, min_workers=min_workers, max_workers=max_workers)) for job in queue]
    return play_arrivals(client, arrivals, on_look)


def play_arrivals(
    client: Client, arrivals: Sequence[tuple[float, Submission]], on_look: OnLook = lambda now_s, rows: None
) -> Played:
    """Submit every job at its arrival time and wait for the last one to finish."""
    ids: list[str] = []
    waiting = sorted(arrivals, key=lambda arrival: arrival[0])
    began_s = time.monotonic()
    while True:
        now_s = time.monotonic() - began_s
        while waiting and waiting[0][0] <= now_s:
            ids.append(client.submit(waiting.pop(0)[1]))
        rows = [row for row in client.job_details() if row["id"] in ids]
        on_look(now_s, rows)
        if not waiting and all(row["state"] in FINAL_STATES for row in rows):
            break
        time.sleep(POLL_S)
    _check_completed(rows)
    first_s = min(row["submitted_s"] for row in rows)
    completions = (
        Completion(
            row["name"],
            row["submitted_s"] - first_s,
            (row["finished_s"] or row["submitted_s"]) - row["submitted_s"],
            row["restarts"],
        )
        for row in rows
    )
    return Played(tuple(completions))


def _check_completed(rows: Sequence[JobDetail]) -> None:
    for row in rows:
        if row["state"] != "COMPLETED":
            raise ControllerError(
                f"job {row['name']} is {row['state']} ({row['reason']}), expected COMPLETED: "
                "run `weft doctor` to look for problems on this machine"
            )


def _wait_until_it_responds(client: Client, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline_s = time.monotonic() + START_TIMEOUT_S
    while True:
        try:
            client.health()
            return
        except NoControllerError:
            if process.poll() is not None or time.monotonic() > deadline_s:
                said = log.read_text(errors="replace").strip() or "its log is empty"
                raise ControllerError(
                    f"the controller did not start ({said}): run `weft doctor` to look for problems on this machine"
                ) from None
        time.sleep(0.02)


def _end(client: Client, process: subprocess.Popen[bytes]) -> None:
    """Stop the jobs, then the controller; kill it if it does not exit in time."""
    with contextlib.suppress(ControllerError):
        client.shutdown(stop_jobs=True)
    try:
        process.wait(timeout=EXIT_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
