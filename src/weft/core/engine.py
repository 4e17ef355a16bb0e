"""What every engine does; one contract suite tests all of them, including the simulator's.

[Note: exactly once]
An engine may get the same call twice: if the controller is killed between recording an action and carrying it out, the
next one carries it out again.  So every call is idempotent by (job, attempt): starting an attempt that was ever started
does nothing, and neither does stopping or killing one that has ended.  The outcome of an attempt stays known until it
is forgotten, however long no controller is running.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from weft.core.events import WorkersExited, WorkersStarted
from weft.core.job import Launch

EngineEvent = WorkersStarted | WorkersExited


@dataclass(frozen=True, slots=True)
class StartOrder:
    """One attempt of one job, ready to be started."""

    job_id: str
    attempt: int
    devices: tuple[int, ...]
    launch: Launch
    environment: Mapping[str, str] = field(default_factory=dict)
    """What the controller adds to the job's environment: channel, checkpoint folder, lease, ..."""


class Engine(Protocol):
    """Runs attempts.  Calls return immediately; ``poll`` reports their outcome."""

    @property
    def devices_by_node(self) -> tuple[int, ...]:
        """Number of devices of each node."""

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

    def known(self) -> Sequence[tuple[str, int]]:
        """Attempts that were started and not forgotten, including those of earlier controllers."""

    def hints(self) -> Mapping[tuple[str, int], str]:
        """Attempts that are held up, and why, in words; called every few seconds."""

    def forget(self, job_id: str, attempt: int) -> None:
        """The controller has recorded how this attempt ended; only its output need be kept."""

    def close(self) -> None:
        """Release the engine's resources.  Workers keep running."""
