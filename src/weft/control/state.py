"""What the controller knows.  Changed by ``reducer.reduce`` and by nothing else.

PENDING ----> RUNNING ----> COMPLETED
   ^  |          |  |-----> FAILED
   |  |          v
   |  |       STOPPING ---> CANCELLED, COMPLETED, FAILED
   |  |          |
   |  `----------|--------> CANCELLED
   `-------------'
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from weft.core.cluster import Cluster
from weft.core.job import JobSpec, Launch


class JobState(enum.Enum):
    """Where a job stands; the names are those of ``weft status --json``."""

    PENDING = "PENDING"
    """Has no workers: never had, or gave them back."""
    RUNNING = "RUNNING"
    """Workers were ordered or run."""
    STOPPING = "STOPPING"
    """Its workers were asked to leave: to be resized, to make room, or because it was cancelled."""
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"

    @property
    def is_final(self) -> bool:
        return self in (JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED)


@dataclass(frozen=True, slots=True)
class Job:
    """One job as the controller sees it."""

    spec: JobSpec
    total_steps: int | None = None
    title: str = ""
    launch: Launch | None = None
    state: JobState = JobState.PENDING
    attempt: int = 0
    """The present or last attempt; 0 before the first."""
    devices: tuple[int, ...] = ()
    """Held by the present attempt, until its last worker is gone."""
    wanted: tuple[int, ...] = ()
    """What the last decision gave it; it moves there when those devices are free."""
    partner: str | None = None
    fills: bool = False
    is_cancelled: bool = False
    num_restarts: int = 0
    """Starts after the first, of any kind."""
    num_failures: int = 0
    """Attempts that failed by themselves; compared with ``launch.max_restarts``."""
    submitted_s: float = 0.0
    started_s: float | None = None
    """When its first workers were ordered."""
    finished_s: float | None = None
    changed_s: float = 0.0
    """When it got its present devices, or lost its last ones, or was submitted."""
    step: int = 0
    step_s: float = 0.0
    exposed_s: float = 0.0
    loss: float | None = None
    attained_device_s: float = 0.0
    """Devices held x time up to ``changed_s``."""
    exit_code: int | None = None
    reason: str = ""
    """Why it is where it is, in a sentence."""

    @property
    def id(self) -> str:
        return self.spec.name


@dataclass(frozen=True, slots=True)
class State:
    """Everything; jobs in order of submission."""

    cluster: Cluster
    jobs: Mapping[str, Job] = field(default_factory=dict)
    now_s: float = 0.0
    """Time of the last event; never runs backwards, whatever the clock does."""
    num_events: int = 0
