"""One queue on a controller of its own: hand the jobs in as they arrive, watch, and keep who took how long."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from weft.client import Client
from weft.core.status_rows import FINAL_STATES, JobDetail
from weft.demo.queue import QueuedJob
from weft.errors import ControllerError, NoControllerError

LOOK_EVERY_S = 0.1
START_TIMEOUT_S = 30.0
LEAVE_TIMEOUT_S = 20.0


@dataclass(frozen=True, slots=True)
class Completion:
    """What became of one job."""

    name: str
    arrived_s: float
    """Since the first job arrived."""
    took_s: float
    """From being handed in to the end."""
    restarts: int


@dataclass(frozen=True, slots=True)
class Played:
    """A queue from the first arrival to the last end."""

    completions: tuple[Completion, ...]
    last_rows: tuple[JobDetail, ...]

    @property
    def mean_s(self) -> float:
        return sum(job.took_s for job in self.completions) / len(self.completions)

    @property
    def makespan_s(self) -> float:
        return max(job.arrived_s + job.took_s for job in self.completions)


# (seconds since the first arrival, jobs handed in so far)
OnLook = Callable[[float, Sequence[JobDetail]], None]


@contextlib.contextmanager
def throw_away_controller(policy: str, *, num_devices: int | None = None, hold_s: float = 2.0) -> Iterator[Client]:
    """A controller in a folder of its own; with the block go its jobs, its processes and its folder."""
    home = Path(tempfile.mkdtemp(prefix="weft-demo-"))
    command = [sys.executable, "-P", "-m", "weft.daemon", str(home), "--port", "0"]
    command += ["--policy", policy, "--hold-s", str(hold_s), "--grace-s", "10"]
    if num_devices is not None:
        command += ["--devices", str(num_devices)]
    with (home / "controller.log").open("wb") as log:
        # Ctrl-C is for the demo, which then lets the controller leave in order.
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
    client = Client(home)
    try:
        _wait_until_it_answers(client, process, home / "controller.log")
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
    """Hand in every job when its time has come and wait for the last to end."""
    ids: list[str] = []
    waiting = sorted(queue, key=lambda job: job.arrives_s)
    began_s = time.monotonic()
    while True:
        now_s = time.monotonic() - began_s
        while waiting and waiting[0].arrives_s <= now_s:
            job = waiting.pop(0)
            ids.append(client.submit(job.submission(os.getcwd(), min_workers=min_workers, max_workers=max_workers)))
        rows = [row for row in client.job_details() if row["id"] in ids]
        on_look(now_s, rows)
        if not waiting and all(row["state"] in FINAL_STATES for row in rows):
            break
        time.sleep(LOOK_EVERY_S)
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
    return Played(tuple(completions), tuple(rows))


def _check_completed(rows: Sequence[JobDetail]) -> None:
    for row in rows:
        if row["state"] != "COMPLETED":
            raise ControllerError(
                f"job {row['name']} ended as {row['state']} ({row['reason']}), expected COMPLETED: "
                "`weft doctor` says what this machine lacks"
            )


def _wait_until_it_answers(client: Client, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline_s = time.monotonic() + START_TIMEOUT_S
    while True:
        try:
            client.health()
            return
        except NoControllerError:
            if process.poll() is not None or time.monotonic() > deadline_s:
                said = log.read_text(errors="replace").strip() or "it said nothing"
                raise ControllerError(f"the controller did not start, expected it to answer: {said}") from None
        time.sleep(0.02)


def _end(client: Client, process: subprocess.Popen[bytes]) -> None:
    """Jobs first, then the controller; whatever does not go is killed."""
    with contextlib.suppress(ControllerError):
        client.shutdown(stop_jobs=True)
    try:
        process.wait(timeout=LEAVE_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGKILL)
        process.wait()
