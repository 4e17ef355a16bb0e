"""The controller's state.  Only ``reducer.reduce`` makes a new one.  ``transitions.py`` has the job life cycle."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from weft.control.job_table import JobTable
from weft.core.cluster import Cluster
from weft.core.job import JobSpec, Launch


class JobState(enum.Enum):
    """A job's state; the names are those of ``weft status --json``."""

    PENDING = "PENDING"
    """Has no workers."""
    RUNNING = "RUNNING"
    """Its workers were ordered, or run."""
    STOPPING = "STOPPING"
    """Its workers were asked to stop: to be resized, to free devices, or because it was canceled."""
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

    What it holds (``devices``, ``partner``, ``fills``) belongs to the current attempt; what the last decision gave it
    (``wanted...``) may differ while workers are stopping.  Without slots: see ``draft.altered``.
    """

    spec: JobSpec
    number: int = 0
    """Place in the order of submission."""
    total_steps: int | None = None
    name: str = ""
    launch: Launch | None = None
    state: JobState = JobState.PENDING
    attempt: int = 0
    """The current or last attempt; 0 before the first."""
    devices: tuple[int, ...] = ()
    """Held by the current attempt until its last worker has exited."""
    partner: str | None = None
    """The job whose current attempt holds the same devices; always mutual."""
    fills: bool = False
    """Whether it runs only in the gaps of its partner."""
    wanted: tuple[int, ...] = ()
    """What the last decision gave it; it moves there when those devices are free."""
    wanted_partner: str | None = None
    wanted_fills: bool = False
    is_cancelled: bool = False
    is_killed: bool = False
    """The current attempt is being killed, not only asked to stop (second cancel, failed node)."""
    num_restarts: int = 0
    """Starts after the first, of any kind."""
    num_failures: int = 0
    """Attempts that failed; compared with ``launch.max_restarts``."""
    num_losses: int = 0
    """Attempts in a row that were lost without making progress."""
    lost_at_step: int = 0
    """The furthest step of the lost attempts; an attempt makes progress beyond it."""
    submitted_s: float = 0.0
    started_s: float | None = None
    """When its first workers were ordered."""
    workers_since_s: float | None = None
    """When the current attempt's workers were started; None while they are only ordered."""
    finished_s: float | None = None
    changed_s: float = 0.0
    """When it got its current devices, lost its last ones, or was submitted."""
    step: int = 0
    step_s: float = 0.0
    exposed_s: float = 0.0
    loss: float | None = None
    attained_device_s: float = 0.0
    """Devices held x time up to ``changed_s``."""
    exit_code: int | None = None
    reason: str = ""
    """Why it is in this state, in a sentence."""

    @property
    def id(self) -> str:
        return self.spec.id


@dataclass(frozen=True, slots=True)
class State:
    """Everything; jobs in order of submission."""

    cluster: Cluster
    jobs: JobTable = field(default_factory=JobTable)
    now_s: float = 0.0
    """Time of the last event; never runs backward, whatever the clock does."""
    num_events: int = 0
    """Events so far; the n-th event has the number n, in the journal and in messages."""
