"""The life cycle of a job, as a table.

    PENDING ---start---> RUNNING ---------- completed, failed too often ----------> COMPLETED, FAILED
     |  ^                 |   |                                                        ^
     |  |---lost, failed--|   |--resize, pause, cancel, node failed--> STOPPING -------|
     |  |                                                               |   |
     |  |----------------------------- stopped -------------------------|   |
     |                                                                      |
     `----------------------------- cancelled ------------------------------`----> CANCELLED

A resized job passes through PENDING, even if only for an instant, between its old workers and its new ones.
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
    """A state change that the table does not allow: a bug in weft, not a user error."""


def check_transition(job_id: str, before: JobState, after: JobState) -> None:
    """Raise unless the table allows it.

    >>> check_transition("resnet", JobState.PENDING, JobState.RUNNING)
    """
    if after not in LEGAL[before]:
        allowed = ", ".join(sorted(state.value for state in LEGAL[before])) or "none, it has finished"
        raise IllegalTransition(
            f"job {job_id} cannot change from {before.value} to {after.value}: expected one of {allowed}; "
            "please report this with the event log"
        )
