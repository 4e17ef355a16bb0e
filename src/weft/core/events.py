"""What happened, in the past tense.  Events are the only way into the reducer of ``control/``.

Times are seconds of the controller's clock: wall-clock seconds live, virtual seconds in the simulator.  Workers
are named by job and attempt; attempts are counted from 1, and an event of an attempt that is over is late and
changes nothing.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from weft.core.job import JobSpec, Launch


class Fate(enum.Enum):
    """How an attempt ended."""

    COMPLETED = "completed"
    """Every worker ended well: the job is done."""
    STOPPED = "stopped"
    """Asked to stop, and stopped; it can go on from its checkpoint (or from the start, if it keeps none)."""
    FAILED = "failed"
    """The script failed by itself."""
    LOST = "lost"
    """The workers vanished without having failed: killed from outside, their node gone, never started."""


@dataclass(frozen=True, slots=True)
class JobSubmitted:
    """A job entered the queue; ``spec.id`` is its id, unique for ever."""

    at_s: float
    spec: JobSpec
    total_steps: int | None = None
    name: str = ""
    """The name its owner gave it; need not be unique."""
    launch: Launch | None = None
    """How its workers are started; the simulator needs none."""


@dataclass(frozen=True, slots=True)
class CancelRequested:
    """Its owner, or an operator, wants the job gone."""

    at_s: float
    job_id: str
    reason: str = "cancelled by its owner"


@dataclass(frozen=True, slots=True)
class DevicesAssigned:
    """A decision of the policy, placed on devices: who shall have which from now on.

    Active jobs that are not named shall have none.  The two jobs of a pair are given the same devices.
    """

    at_s: float
    devices: Mapping[str, tuple[int, ...]]
    partners: Mapping[str, str] = field(default_factory=dict)
    """The job each one shares its devices with; symmetric."""
    fillers: frozenset[str] = frozenset()
    reasons: Mapping[str, str] = field(default_factory=dict)
    """Why, in a sentence per job whose allocation changed."""


@dataclass(frozen=True, slots=True)
class WorkersStarted:
    """All workers of the attempt exist; ``at_s`` is when they began to exist, not when they made a step."""

    at_s: float
    job_id: str
    attempt: int


@dataclass(frozen=True, slots=True)
class ProgressReported:
    """What the workers of an attempt say of themselves, thinned out by whoever passes it on."""

    at_s: float
    job_id: str
    attempt: int
    step: int
    total_steps: int | None = None
    step_s: float = 0.0
    exposed_s: float = 0.0
    loss: float | None = None


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
    """A node and what ran on it are gone."""

    at_s: float
    node: int


@dataclass(frozen=True, slots=True)
class NodeRepaired:
    """A node is back."""

    at_s: float
    node: int


@dataclass(frozen=True, slots=True)
class JobsPurged:
    """Jobs that were over have been deleted with their files, by the rule for what is kept."""

    at_s: float
    job_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ClockSetBack:
    """The clock had been ahead; ``at_s`` is the right time.  The only event after which it is earlier than before."""

    at_s: float


Event = (
    JobSubmitted
    | CancelRequested
    | DevicesAssigned
    | WorkersStarted
    | ProgressReported
    | WorkersExited
    | NodeFailed
    | NodeRepaired
    | JobsPurged
    | ClockSetBack
)
