"""What a user asked for: one job and the worker counts it may have."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated

from weft.core.command_line import Option
from weft.errors import UsageError

MAX_RESTARTS = 1_000_000


@dataclass(frozen=True, slots=True)
class JobSpec:
    """A data-parallel job as submitted.

    ``requested_workers`` is the size its owner would run it at; policies that never resize use that one.
    ``sizes`` is the menu of worker counts; empty means every count from ``min_workers`` to ``max_workers``.

    >>> JobSpec("resnet", submitted_s=0.0, max_workers=8, sizes=(1, 2, 4, 8, 16)).allowed_sizes(num_devices=6)
    (1, 2, 4)
    """

    id: str
    submitted_s: float
    min_workers: int = 1
    max_workers: int = 1
    requested_workers: int = 1
    sizes: tuple[int, ...] = ()
    user: str = ""
    weight: float = 1.0
    priority: int = 0
    may_share: bool = True
    """Whether the job may take turns with another one on its devices (crossover)."""

    def __post_init__(self) -> None:
        if not self.id:
            raise UsageError("a job has no id: give each job a unique one")
        if not (math.isfinite(self.submitted_s) and self.submitted_s >= 0):
            raise UsageError(f"job {self.id} is submitted at {self.submitted_s}: expected seconds >= 0")
        if not 1 <= self.min_workers <= self.max_workers:
            raise UsageError(
                f"job {self.id} asks for {self.min_workers} to {self.max_workers} workers: "
                "expected 1 <= min_workers <= max_workers"
            )
        if not (math.isfinite(self.weight) and self.weight > 0):
            raise UsageError(f"job {self.id} has weight {self.weight}: expected a positive number")
        if not self.allowed_sizes(self.max_workers):
            raise UsageError(
                f"job {self.id} lists sizes {self.sizes}, none of them between its {self.min_workers} "
                f"and {self.max_workers} workers: widen the range or the menu"
            )

    def changed(
        self,
        weight: float | None = None,
        priority: int | None = None,
        min_workers: int | None = None,
        max_workers: int | None = None,
    ) -> JobSpec:
        """The same job with these values; raises :class:`UsageError` if they do not fit together.

        >>> JobSpec("resnet", 0.0, max_workers=8, requested_workers=8).changed(max_workers=4).requested_workers
        4
        """
        low = self.min_workers if min_workers is None else min_workers
        high = self.max_workers if max_workers is None else max_workers
        was_largest = self.requested_workers == self.max_workers
        return replace(
            self,
            weight=self.weight if weight is None else weight,
            priority=self.priority if priority is None else priority,
            min_workers=low,
            max_workers=high,
            requested_workers=high if was_largest else max(min(self.requested_workers, high), low),
        )

    def allowed_sizes(self, num_devices: int) -> tuple[int, ...]:
        """The worker counts this job may have on ``num_devices`` devices, smallest first."""
        top = min(self.max_workers, num_devices)
        if not self.sizes:
            return tuple(range(self.min_workers, top + 1))
        return tuple(sorted({size for size in self.sizes if self.min_workers <= size <= top}))


@dataclass(frozen=True, slots=True)
class Launch:
    """How a job's workers are started: an argument list, never a shell command line.

    As in ``Submission``, each field's description and limits are declared only here: see ``submission.FIELDS``.
    """

    argv: Annotated[tuple[str, ...], Option("the command as a list of words; no shell reads it")]
    """As its owner would type it: ``("python", "train.py", "--lr", "0.1")``."""
    cwd: Annotated[str, Option("folder to run in", "the current folder, or the job file's", metavar="DIR")]
    environment: Annotated[
        Mapping[str, str], Option("environment variables, in addition to the controller's own", "none")
    ] = field(default_factory=dict)
    max_restarts: Annotated[int, Option("restart after a failure, at most N times", "0", min=0, max=MAX_RESTARTS)] = 0
    batch: Annotated[
        str, Option("global batch sizes to choose from, such as 256:2048", "the script's", metavar="MIN:MAX")
    ] = ""
