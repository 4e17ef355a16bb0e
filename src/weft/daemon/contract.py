"""What the controller answers with, and the errors it raises.

UnknownJobError     no such job (or attempt, or worker): a 404
ConflictError       the job is not in a state for this request: a 409
UsageError          the request is invalid: a 400
StoreError          the journal cannot be written (disk full, ...), so nothing was acknowledged: a 503
StoppingError       the controller is shutting down: a 503
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from weft.errors import UsageError, WeftError

LogStream = Literal["out", "err"]


class UnknownJobError(UsageError):
    """No job with that id, or no such attempt or worker of it."""


class ConflictError(UsageError):
    """The request is valid, but not for a job in this state."""


class StoppingError(WeftError):
    """The controller is shutting down and accepts no new requests."""


class NodeStatus(enum.Enum):
    """Whether jobs can be started on a node."""

    UP = "up"
    DRAINED = "drained"
    """Taken out of service with `weft nodes drain`; jobs there move away."""
    LEAVING = "leaving"
    """About to be taken away, according to the engine; jobs there move away."""
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class NodeView:
    """One node and the jobs on its devices."""

    node: int
    name: str
    status: NodeStatus
    devices: Mapping[int, tuple[str, ...]]
    """Device -> ids of the jobs that hold it: none, one, or the two of a pair."""
    kind: str = ""
    """The kind of its devices, if declared."""


@dataclass(frozen=True, slots=True)
class Sentence:
    """Something that happened to a job, and why, in words."""

    at_s: float
    text: str


@dataclass(frozen=True, slots=True)
class Decision:
    """One decision that changed something."""

    at_s: float
    devices: Mapping[str, tuple[int, ...]]
    """The devices of each job from then on."""
    reasons: Mapping[str, str]
    """Why, for every job whose allocation changed."""
