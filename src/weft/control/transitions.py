"""Where a job can go from where it is: the whole life cycle, as a table.

    PENDING ---start---> RUNNING ---------- completed, failed too often ----------> COMPLETED, FAILED
     |  ^                 |   |                                                        ^
     |  |---lost, failed--|   |--resize, pause, cancel, node failed--> STOPPING -------|
     |  |                                                               |   |
     |  |-------------------------- gone, to go on later ---------------|   |
     |                                                                      |
     `----------------------------- cancelled ------------------------------`----> CANCELLED

A resized job passes through PENDING, be it for no time at all: its old workers are gone, its new ones are not ordered.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from weft.control.state import JobState
from weft.errors import WeftError

LEGAL: Final[Mapping[JobState, frozenset[JobState]]] = {
    JobState.PENDING: frozenset({JobState.RUNNING, JobState.CANCELLED}),
    JobState.RUNNING: frozenset({JobState.STOPPING, JobState.PENDING, JobState.COMPLETED, JobState.FAILED}),
    JobState.STOPPING: frozenset({JobState.PENDING, JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED}),
    JobState.COMPLETED: frozenset(),
    JobState.FAILED: frozenset(),
    JobState.CANCELLED: frozenset(),
}


class IllegalTransition(WeftError):
    """A job was to go where it cannot go from where it is: an error of weft, not of its user."""


def check_transition(job_id: str, before: JobState, after: JobState) -> None:
    """Raise unless the table knows the way.

    >>> check_transition("resnet", JobState.PENDING, JobState.RUNNING)
    """
    if after not in LEGAL[before]:
        ways = ", ".join(sorted(state.value for state in LEGAL[before])) or "nowhere, it is over"
        raise IllegalTransition(
            f"job {job_id} was to go from {before.value} to {after.value}: expected one of {ways}; "
            "please report this with the event log"
        )
