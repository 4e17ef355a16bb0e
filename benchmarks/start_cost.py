"""What starting a job costs, as the simulator wants to know it."""

from __future__ import annotations

import time
from collections.abc import Callable

from weft.client import Client
from weft.core.status_rows import FINAL_STATES, JobDetail
from weft.core.submission import Submission
from weft.errors import ControllerError

LEAST_S = 0.1
_POLL_S = 0.05
_WITHIN_S = 60.0


def reported_step_s(client: Client, name: str) -> float:
    """The step time that the jobs of this name reported; the slowest one's."""
    return max((row["step_s"] for row in client.job_details() if row["name"] == name), default=0.0)


def start_cost_s(took_s: float, num_steps: int, step_s: float) -> float:
    """A job's time beyond that of its steps.

    The difference between a short and a long job would be wrong on a busy machine: if the short one ran while it was
    faster, the start would cost less than nothing.
    """
    return max(LEAST_S, took_s - num_steps * step_s)


def restart_cost_s(client: Client, submission: Submission, num_steps: int, step_s: float) -> float:
    """What starting a job again costs: how long it then holds devices beyond the steps that it still has to make.

    The job is stopped by draining one of its nodes.
    """
    job = client.submit(submission)
    _until(client, job, lambda row: row["step"] > 0)
    (drained, *_) = [
        node["name"] for node in client.nodes() if any(job in device["jobs"] for device in node["devices"])
    ]
    client.drain(drained)
    try:
        restarted = _until(client, job, lambda row: row["attempt"] == 2 or not row["devices"])
    finally:
        client.drain(drained, resume=True)
    if restarted["attempt"] == 1:  # it waits for the node
        restarted = _until(client, job, lambda row: row["attempt"] == 2)
    ended = _until(client, job, lambda row: row["state"] in FINAL_STATES)
    return start_cost_s(ended["ran_s"] - restarted["ran_s"], num_steps - restarted["step"], step_s)


def _until(client: Client, job: str, holds: Callable[[JobDetail], bool]) -> JobDetail:
    deadline_s = time.monotonic() + _WITHIN_S
    while not holds(row := client.job(job)):
        if row["state"] in FINAL_STATES or time.monotonic() > deadline_s:
            raise ControllerError(
                f"the job that measures what a restart costs is {row['state']} at step {row['step']} of attempt "
                f"{row['attempt']}: expected it to be restarted once, and to end, within {_WITHIN_S:g} s each"
            )
        time.sleep(_POLL_S)
    return row
