"""What the controller knows.  Changed by ``reducer.reduce`` and by nothing else.

Where a job can go from where it is stands in ``transitions.py``.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from weft.control.job_table import JobTable
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
        return self in _FINAL


_FINAL = frozenset({JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED})


@dataclass(frozen=True)
class Job:
    """One job as the controller sees it.

    What it holds (``devices``, ``partner``, ``fills``) belongs to the present attempt; what the last decision gave it
    (``wanted...``) may differ while workers are on their way out.  Without slots: see ``draft.altered``.
    """

    spec: JobSpec
    number: int = 0
    """Place in the order of submission."""
    total_steps: int | None = None
    name: str = ""
    launch: Launch | None = None
    state: JobState = JobState.PENDING
    attempt: int = 0
    """The present or last attempt; 0 before the first."""
    devices: tuple[int, ...] = ()
    """Held by the present attempt, until its last worker is gone."""
    partner: str | None = None
    """The job whose present attempt holds the same devices; always mutual."""
    fills: bool = False
    """Whether it only runs in the gaps of its partner."""
    wanted: tuple[int, ...] = ()
    """What the last decision gave it; it moves there when those devices are free."""
    wanted_partner: str | None = None
    wanted_fills: bool = False
    is_cancelled: bool = False
    is_killed: bool = False
    """The present attempt was not only asked to leave: it is being killed (second cancel, failed node)."""
    num_restarts: int = 0
    """Starts after the first, of any kind."""
    num_failures: int = 0
    """Attempts that failed by themselves; compared with ``launch.max_restarts``."""
    num_losses: int = 0
    """Attempts in a row that went away without having been asked and without having got further."""
    lost_at_step: int = 0
    """The furthest step of the attempts that were lost; whoever gets beyond it makes progress."""
    submitted_s: float = 0.0
    started_s: float | None = None
    """When its first workers were ordered."""
    workers_since_s: float | None = None
    """When the workers of the present attempt began to exist; None while they are only ordered."""
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
        return self.spec.id


@dataclass(frozen=True, slots=True)
class State:
    """Everything; jobs in order of submission."""

    cluster: Cluster
    jobs: JobTable = field(default_factory=JobTable)
    now_s: float = 0.0
    """Time of the last event; never runs backwards, whatever the clock does."""
    num_events: int = 0
    """Events so far; the n-th event has the id n, in the journal and in every message about it."""
