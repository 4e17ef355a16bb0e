"""What is to be done, in the imperative.  The reducer of ``control/`` asks; an engine does it, or the simulator."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StartWorkers:
    """One worker on each of ``devices``.  Asked twice for the same attempt, an engine starts it once."""

    job_id: str
    attempt: int
    devices: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StopWorkers:
    """Ask the workers to save and leave; they have the engine's grace to do so."""

    job_id: str
    attempt: int


@dataclass(frozen=True, slots=True)
class KillWorkers:
    """End the workers now, with everything they started."""

    job_id: str
    attempt: int


@dataclass(frozen=True, slots=True)
class Decide:
    """Something changed that the policy should know about."""


Action = StartWorkers | StopWorkers | KillWorkers | Decide
