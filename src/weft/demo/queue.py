"""The demo's queue: two long jobs first, then short ones, as on any small cluster.  Pure."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from weft.core.job import Launch
from weft.core.submission import Submission


@dataclass(frozen=True, slots=True)
class QueuedJob:
    """A job and its arrival time."""

    name: str
    arrives_s: float
    num_steps: int

    def submission(self, cwd: str, *, min_workers: int, max_workers: int) -> Submission:
        """The global batch, and with it the training, is the same for any number of workers."""
        command = (sys.executable, "-m", "weft.demo.train", "--steps", str(self.num_steps))
        return Submission(
            Launch(command, cwd),
            name=self.name,
            min_workers=min_workers,
            max_workers=max_workers,
            total_steps=self.num_steps,
        )


QUEUE = (
    QueuedJob("long-1", 0.0, 320),
    QueuedJob("long-2", 0.5, 320),
    QueuedJob("short-1", 3.0, 40),
    QueuedJob("short-2", 4.0, 60),
    QueuedJob("medium", 5.0, 100),
    QueuedJob("short-3", 7.0, 40),
    QueuedJob("short-4", 9.0, 40),
)
