"""What happened, in the past tense.  Events are the only input of the reducer in ``control/``.

Times are seconds of the controller's clock: wall-clock seconds live, virtual seconds in the simulator.  Workers are
identified by job and attempt; attempts are numbered from 1, and an event of an attempt that has ended changes nothing.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from weft.core.job import JobSpec, Launch
from weft.core.step_report import Progress


class Fate(enum.Enum):
    """How an attempt ended."""

    COMPLETED = "completed"
    """Every worker succeeded: the job is done."""
    STOPPED = "stopped"
    """Stopped on request; it can resume from its checkpoint (or start over, if it has none)."""
    FAILED = "failed"
    """The script failed."""
    LOST = "lost"
    """The workers vanished without having failed: killed from outside, on a failed node, or never started."""


@dataclass(frozen=True, slots=True)
class JobSubmitted:
    """A job entered the queue; ``spec.id`` is its unique id."""

    at_s: float
    spec: JobSpec
    total_steps: int | None = None
    name: str = ""
    """The name its owner gave it; need not be unique."""
    launch: Launch | None = None
    """How to start its workers; unused in the simulator."""


@dataclass(frozen=True, slots=True)
class CancelRequested:
    """Its owner or an operator canceled the job."""

    at_s: float
    job_id: str
    reason: str = "cancelled by its owner"
    """Journals leave out a default, so this one stays as it was written in older ones."""


@dataclass(frozen=True, slots=True)
class JobChanged:
    """Its owner or an operator changed the job's limits; ``None`` means unchanged."""

    at_s: float
    job_id: str
    weight: float | None = None
    priority: int | None = None
    min_workers: int | None = None
    max_workers: int | None = None


@dataclass(frozen=True, slots=True)
class DevicesAssigned:
    """A decision, placed on devices: which job gets which devices from now on.

    Active jobs that are not listed get none.  The two jobs of a pair get the same devices.
    """

    at_s: float
    devices: Mapping[str, tuple[int, ...]]
    partners: Mapping[str, str] = field(default_factory=dict)
    """The job with which each job shares its devices; symmetric."""
    fillers: frozenset[str] = frozenset()
    reasons: Mapping[str, str] = field(default_factory=dict)
    """Why: a sentence for each job whose situation changed."""
    reason_codes: Mapping[str, str] = field(default_factory=dict)
    """The same as short codes, see :mod:`weft.core.reason`; records of older versions have none."""
    details: Mapping[str, str] = field(default_factory=dict)
    """What ``weft explain`` adds to some of the sentences."""


@dataclass(frozen=True, slots=True)
class WorkersStarted:
    """All workers of the attempt exist; ``at_s`` is when they were created, not when they finished a step."""

    at_s: float
    job_id: str
    attempt: int
    devices: tuple[int, ...] = ()
    """Where they run; filled in by the controller, so that the journal alone shows which job had which devices when."""


@dataclass(frozen=True, slots=True)
class ProgressReported:
    """The newest step report of an attempt; not every report becomes an event."""

    at_s: float
    job_id: str
    attempt: int
    progress: Progress


@dataclass(frozen=True, slots=True)
class WorkersExited:
    """No worker of the attempt is left."""

    at_s: float
    job_id: str
    attempt: int
    fate: Fate
    exit_code: int = 0
    reason: str = ""


@dataclass(frozen=True, slots=True)
class NodeFailed:
    """A node failed, and with it everything that ran on it."""

    at_s: float
    node: int


@dataclass(frozen=True, slots=True)
class NodeRepaired:
    """A node works again."""

    at_s: float
    node: int


@dataclass(frozen=True, slots=True)
class NodeJoined:
    """A new node appeared, or the device kind of a known node was learned or changed."""

    at_s: float
    name: str
    num_devices: int
    kind: str = ""
    """The kind of its devices, if known."""


@dataclass(frozen=True, slots=True)
class NodeDrained:
    """A node was taken out of service: jobs there move away, and no new ones are started there."""

    at_s: float
    node: int
    reason: str = ""
    is_notice: bool = False
    """Whether the engine announced that the node will leave; otherwise an operator drained it."""


@dataclass(frozen=True, slots=True)
class NodeResumed:
    """A drained node is in service again."""

    at_s: float
    node: int
    is_notice: bool = False


@dataclass(frozen=True, slots=True)
class JobsPurged:
    """Finished jobs were deleted with their files."""

    at_s: float
    job_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ClockSetBack:
    """The clock had been ahead; ``at_s`` is the correct time.  The only event that moves time backward."""

    at_s: float


Event = (
    JobSubmitted
    | CancelRequested
    | JobChanged
    | DevicesAssigned
    | WorkersStarted
    | ProgressReported
    | WorkersExited
    | NodeFailed
    | NodeRepaired
    | NodeJoined
    | NodeDrained
    | NodeResumed
    | JobsPurged
    | ClockSetBack
)
