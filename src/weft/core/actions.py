"""What to do, in the imperative.  The reducer in ``control/`` returns actions; an engine carries them out."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StartWorkers:
    """Start one worker on each of ``devices``.  An engine starts the same attempt only once."""

    job_id: str
    attempt: int
    devices: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StopWorkers:
    """Ask the workers to save a checkpoint and exit within the engine's grace period."""

    job_id: str
    attempt: int


@dataclass(frozen=True, slots=True)
class KillWorkers:
    """Kill the workers and every process they started."""

    job_id: str
    attempt: int


@dataclass(frozen=True, slots=True)
class Decide:
    """Make a decision: something changed that the policy should know about."""


Action = StartWorkers | StopWorkers | KillWorkers | Decide
