"""Waiting for a controller in this process."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from tests.hang_limit import HANG_S

from weft.control.state import Job, JobState
from weft.daemon.service import Controller


def until(happened: Callable[[], bool], what: str) -> None:
    """Block until ``happened`` is true."""
    deadline_s = time.monotonic() + HANG_S
    while not happened():
        assert time.monotonic() < deadline_s, f"never happened: {what}"
        time.sleep(0.002)


def until_state(controller: Controller, job_id: str, state: JobState) -> Job:
    until(lambda: controller.job(job_id).state is state, f"{job_id} {state.value}")
    return controller.job(job_id)


def until_over(controller: Controller, job_ids: Sequence[str]) -> dict[str, Job]:
    """The jobs once all of them have finished."""
    until(lambda: all(controller.job(one).state.is_final for one in job_ids), f"the end of {job_ids}")
    return {job_id: controller.job(job_id) for job_id in job_ids}
