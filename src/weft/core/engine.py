"""What every engine can do; one contract suite holds all of them, and the simulator, to it.

[Note: exactly once]
An engine may be asked again for what it was already asked: the controller is killed between writing down an
action and carrying it out, and carries it out again when it comes back.  So every call is idempotent by (job,
attempt): starting an attempt that was ever started does nothing, stopping or killing one that is over does nothing.
What became of an attempt stays known until it is forgotten, however long the controller was away.
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
    """What the controller adds to the job's own environment: channel, checkpoint folder, lease, ..."""


class Engine(Protocol):
    """Runs attempts.  Calls return at once; what comes of them is told by ``poll``."""

    @property
    def devices_by_node(self) -> tuple[int, ...]:
        """What there is to run on."""

    def start(self, order: StartOrder) -> None:
        """Start one worker per device of the order."""

    def stop(self, job_id: str, attempt: int) -> None:
        """Ask the workers to stop after a checkpoint; whoever has not left after the grace is killed."""

    def kill(self, job_id: str, attempt: int) -> None:
        """End the workers and everything they started, now."""

    def poll(self) -> Sequence[EngineEvent]:
        """What became of the attempts since the last call, oldest first; never blocks."""

    def fileno(self) -> int:
        """Becomes readable when ``poll`` has something to tell; -1 for an engine that must be asked."""

    def known(self) -> Sequence[tuple[str, int]]:
        """Attempts this engine has started and not forgotten, also before the controller was last away."""

    def hints(self) -> Mapping[tuple[str, int], str]:
        """Attempts that do not get on as they should, and why, in words; asked for every few seconds."""

    def forget(self, job_id: str, attempt: int) -> None:
        """The controller has written down how this attempt ended; nothing of it need be kept but its output."""

    def close(self) -> None:
        """Let go of the engine.  Workers go on."""
