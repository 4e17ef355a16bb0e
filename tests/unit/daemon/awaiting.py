"""Waiting for the controller by its own notifications, never by sleeping."""

from __future__ import annotations

from collections.abc import Callable

from weft.control.state import Job, JobState
from weft.daemon.service import Controller

LIMIT_S = 30.0


def until(controller: Controller, happened: Callable[[], bool], what: str) -> None:
    """Block until ``happened`` is true; looked at after every event."""
    changed = controller._loop.changed
    with changed:
        assert changed.wait_for(happened, LIMIT_S), f"never came: {what}"


def until_state(controller: Controller, job_id: str, state: JobState) -> Job:
    until(controller, lambda: controller.job(job_id).state is state, f"{job_id} {state.value}")
    return controller.job(job_id)
