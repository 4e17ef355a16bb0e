"""Events and states to put into journals."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator

from weft.control.reducer import reduce
from weft.control.state import State
from weft.core.cluster import Cluster
from weft.core.events import DevicesAssigned, Event, Fate, JobSubmitted, ProgressReported, WorkersExited, WorkersStarted
from weft.core.job import JobSpec, Launch
from weft.core.step_report import Progress

HOSTILE = "a'; DROP TABLE events; --\n$(reboot) \u202e\udc80"


def submission(number: int, *, name: str = "") -> JobSubmitted:
    spec = JobSpec(f"job-{number}", submitted_s=float(number), max_workers=4)
    launch = Launch(("python", "train.py", "--lr", str(number)), "/home/somebody", {"SEED": str(number)})
    return JobSubmitted(float(number), spec, total_steps=100, name=name, launch=launch)


def life(number: int) -> list[Event]:
    """A job that is submitted, runs, and ends."""
    at_s, job_id = float(number), f"job-{number}"
    return [
        submission(number),
        DevicesAssigned(at_s, {job_id: (0, 1)}, reasons={job_id: "alone in the queue"}),
        WorkersStarted(at_s, job_id, 1),
        ProgressReported(at_s, job_id, 1, Progress(50, step_s=0.25, loss=1.5)),
        WorkersExited(at_s, job_id, 1, Fate.COMPLETED),
    ]


def replayed(events: list[Event], state: State | None = None) -> State:
    state = state or State(Cluster((2,)))
    for event in events:
        state, _ = reduce(state, event)
    return state


@contextlib.contextmanager
def held(program: str) -> Iterator[int]:
    """Another process runs ``program``, which takes the journal, until the block ends; yields its pid."""
    code = f"{program}\nprint('held', flush=True)\ninput()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        yield holder.pid
        holder.kill()
