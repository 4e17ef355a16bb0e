"""The controller's state.  Only ``reducer.reduce`` makes a new one.  ``transitions.py`` has the job life cycle."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from weft.control.job_table import JobTable
from weft.core.cluster import Cluster
from weft.core.job import JobSpec, Launch
from weft.core.step_report import NO_PROGRESS, Progress


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
    """Whether the current attempt is being killed, not only asked to stop (second cancel, failed node)."""
    num_restarts: int = 0
    """Starts after the first, of any kind."""
    num_failures: int = 0
    """Attempts that failed; compared with ``launch.max_restarts``."""
    num_losses: int = 0
    """Attempts in a row that were lost without making progress."""
    lost_at_step: int = 0
    """The furthest step of the lost attempts; an attempt makes progress beyond it."""
    started_s: float | None = None
    """When its first workers were ordered."""
    workers_since_s: float | None = None
    """When the current attempt's workers were started; None while they are only ordered."""
    finished_s: float | None = None
    changed_s: float = 0.0
    """When it got its current devices, lost its last ones, or was submitted."""
    progress: Progress = NO_PROGRESS
    """As recorded in the journal; ``daemon.newest_reports`` has newer values."""
    attained_device_s: float = 0.0
    """Devices held x time up to ``changed_s``."""
    ran_s: float = 0.0
    """How long earlier attempts held devices."""
    exit_code: int | None = None
    reason: str = ""
    """Why it is in this state, in a sentence."""
    reason_code: str = ""
    """The same as a short code, see :mod:`weft.core.reason`; empty if an older version wrote the sentence."""

    @property
    def id(self) -> str:
        return self.spec.id

    @property
    def submitted_s(self) -> float:
        return self.spec.submitted_s


@dataclass(frozen=True, slots=True)
class State:
    """Everything; jobs in order of submission."""

    cluster: Cluster
    jobs: JobTable = field(default_factory=JobTable)
    now_s: float = 0.0
    """Time of the last event; never runs backward, even if the clock does."""
    num_events: int = 0
    """Events so far; the n-th event has the number n, in the journal and in messages."""

    def name_of(self, job_id: str) -> str:
        """What to call a job in a sentence: the name its owner gave it, else its id."""
        job = self.jobs.get(job_id)
        return job.name if job is not None and job.name else job_id
