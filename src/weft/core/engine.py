"""What every engine does; one contract suite tests all of them, including the simulator's.

[Note: exactly once]
An engine may get the same call twice: if the controller is killed between recording an action and carrying it out, the
next one carries it out again.  So every call is idempotent by (job, attempt): starting an attempt that was ever started
does nothing, and neither does stopping or killing one that has ended.  The outcome of an attempt stays known until it
is forgotten, even if no controller runs for a long time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from weft.core.events import WorkersExited, WorkersStarted
from weft.core.job import Launch

EngineEvent = WorkersStarted | WorkersExited


LOCAL_NODE = "local"
"""The one node of an engine that runs workers on this machine."""


@dataclass(frozen=True, slots=True)
class EngineNode:
    """A node that an engine can start workers on now."""

    name: str
    """Unique among the nodes; a node that comes back after it was lost has the same name."""
    num_devices: int
    leaves_because: str = ""
    """Why no more workers should be started there, such as a preemption notice; empty for an ordinary node."""
    kind: str = ""
    """The kind of its devices, such as ``A100``; empty if unknown."""


@dataclass(frozen=True, slots=True)
class StartOrder:
    """One attempt of one job, ready to be started."""

    job_id: str
    attempt: int
    devices: tuple[int, ...]
    launch: Launch
    environment: Mapping[str, str] = field(default_factory=dict)
    """What the controller adds to the job's environment: channel, checkpoint folder, lease, ..."""
    device_names: tuple[str, ...] = ()
    """The names of ``devices`` (``node/2``), for engines with more than one node."""


@runtime_checkable
class SharesOnNodes(Protocol):
    """An engine whose nodes have their own lease servers, which it keeps running."""

    def share(self, roles: Mapping[str, str]) -> None:
        """Set how each job in a pair shares (``Role``), until the next call."""

    def free_bytes(self) -> int | None:
        """Free memory on the node that has the least, if known; may be called from any thread."""


@runtime_checkable
class ChecksLaunch(Protocol):
    """An engine that cannot start every job."""

    def check(self, launch: Launch) -> None:
        """Raise a ``UsageError`` that says what to do if the job could never start; may be called from any thread."""


class Engine(Protocol):
    """Runs attempts.  Calls return immediately; ``poll`` reports their outcome."""

    def nodes(self) -> tuple[EngineNode, ...]:
        """The current nodes.  Returns the same object as last time if nothing has changed."""

    def start(self, order: StartOrder) -> None:
        """Start one worker per device of the order."""

    def stop(self, job_id: str, attempt: int) -> None:
        """Ask the workers to stop after a checkpoint; after the grace period they are killed."""

    def kill(self, job_id: str, attempt: int) -> None:
        """Kill the workers and every process they started."""

    def poll(self) -> Sequence[EngineEvent]:
        """New events since the last call, oldest first; never blocks."""

    def fileno(self) -> int:
        """Becomes readable when ``poll`` has events; -1 for an engine that must be polled."""

    def warnings(self) -> Sequence[str]:
        """What needs attention, such as a node that cannot be used; may be called from any thread."""

    def known(self) -> Sequence[tuple[str, int]]:
        """Attempts that were started and not forgotten, including those of earlier controllers."""

    def hints(self) -> Mapping[tuple[str, int], str]:
        """Attempts that are held up, with a sentence that says why; called every few seconds."""

    def forget(self, job_id: str, attempt: int) -> None:
        """The controller has recorded how this attempt ended; keep only its output."""

    def close(self) -> None:
        """Release the engine's resources.  Workers keep running."""
