"""A job as its owner hands it in: everything but the id and the time, which the controller gives.

The job file, the command line and the REST api all end here, so that a job refused by one is refused by all.

>>> job = Submission(Launch(("python", "train.py"), "/home/ana"), name="resnet", max_workers=4)
>>> job.spec("j7", submitted_s=10.0).allowed_sizes(num_devices=2)
(1, 2)
"""

from __future__ import annotations

import math
import os
import re
from dataclasses import dataclass
from typing import Any

from weft.core.job import JobSpec, Launch
from weft.errors import UsageError

MAX_WORKERS = 10_000
MAX_NAME_BYTES = 200
MAX_USER_BYTES = 64
# What Linux lets one argument be, and far less than it lets all of them be together.
MAX_ARGUMENT_BYTES = 128 * 1024
MAX_ARGUMENTS_BYTES = 512 * 1024
MAX_TOTAL_STEPS = 2**53
MAX_RESTARTS = 1_000_000
MAX_PRIORITY = 1_000_000
MAX_WEIGHT = 1e6
_ENVIRONMENT_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_WORKER_RANGE = re.compile(r"([0-9]{1,9})(?::([0-9]{1,9}))?")


@dataclass(frozen=True, slots=True)
class Submission:
    """What was asked for; refuses at once what could never be started."""

    launch: Launch
    name: str = ""
    min_workers: int = 1
    max_workers: int = 1
    requested_workers: int | None = None
    """The size its owner would run it at; the largest if not said."""
    sizes: tuple[int, ...] = ()
    user: str = ""
    weight: float = 1.0
    priority: int = 0
    may_share: bool = True
    total_steps: int | None = None

    def __post_init__(self) -> None:
        _check_text("the job's name", self.name, MAX_NAME_BYTES)
        _check_text("the user's name", self.user, MAX_USER_BYTES)
        _check_launch(self.launch)
        if self.max_workers > MAX_WORKERS or any(size > MAX_WORKERS for size in self.sizes):
            raise UsageError(f"the job requests more than {MAX_WORKERS} workers: request fewer")
        if not (math.isfinite(self.weight) and 1 / MAX_WEIGHT <= self.weight <= MAX_WEIGHT):
            raise UsageError(f"weight is {self.weight}: expected a number from {1 / MAX_WEIGHT:g} to {MAX_WEIGHT:g}")
        _check_range("priority", self.priority, -MAX_PRIORITY, MAX_PRIORITY)
        if self.total_steps is not None:
            _check_range("total_steps", self.total_steps, 1, MAX_TOTAL_STEPS)
        if self.requested_workers is not None:
            _check_range("requested_workers", self.requested_workers, self.min_workers, self.max_workers)
        self.spec("this-job", submitted_s=0.0)

    def spec(self, job_id: str, submitted_s: float) -> JobSpec:
        """The same as the policies see it, once it has an id and a time."""
        return JobSpec(
            id=job_id,
            submitted_s=submitted_s,
            min_workers=self.min_workers,
            max_workers=self.max_workers,
            requested_workers=self.requested_workers or self.max_workers,
            sizes=self.sizes,
            user=self.user,
            weight=self.weight,
            priority=self.priority,
            may_share=self.may_share,
        )

    def document(self) -> dict[str, Any]:
        """The body of ``POST /v1/jobs``."""
        return {
            "name": self.name,
            "command": list(self.launch.argv),
            "cwd": self.launch.cwd,
            "environment": dict(self.launch.environment),
            "max_restarts": self.launch.max_restarts,
            "min_workers": self.min_workers,
            "max_workers": self.max_workers,
            "requested_workers": self.requested_workers,
            "sizes": list(self.sizes),
            "user": self.user,
            "weight": self.weight,
            "priority": self.priority,
            "may_share": self.may_share,
            "total_steps": self.total_steps,
        }


def worker_range(text: str) -> tuple[int, int]:
    """``--workers`` and ``workers:``, smallest and largest number.

    >>> worker_range("2"), worker_range("1:4")
    ((2, 2), (1, 4))
    """
    found = _WORKER_RANGE.fullmatch(text)
    if found is None:
        raise UsageError(f"workers is {text!r}: expected a number such as 2, or a range such as 1:4")
    low = int(found[1])
    high = low if found[2] is None else int(found[2])
    if not 1 <= low <= high:
        raise UsageError(f"workers is {text!r}: expected at least 1, and the smaller number first, as in 1:4")
    return low, high


def _check_launch(launch: Launch) -> None:
    if not launch.argv or not launch.argv[0]:
        raise UsageError("the job has no command: expected one such as python train.py")
    for word in launch.argv:
        _check_text("a word of the command", word, MAX_ARGUMENT_BYTES)
    _check_text("the job's folder", launch.cwd, MAX_ARGUMENT_BYTES)
    if not os.path.isabs(launch.cwd):
        raise UsageError(f"the job's folder is {launch.cwd!r}: expected an absolute path")
    for name, value in launch.environment.items():
        if not _ENVIRONMENT_NAME.fullmatch(name):
            raise UsageError(
                f"{name!r} is not a valid environment variable name: expected letters, digits, and _, as in OMP_THREADS"
            )
        _check_text(f"the environment variable {name}", value, MAX_ARGUMENT_BYTES)
    words = [*launch.argv, *launch.environment, *launch.environment.values()]
    if sum(len(word.encode()) + 1 for word in words) > MAX_ARGUMENTS_BYTES:
        raise UsageError(
            f"command and environment are longer than {MAX_ARGUMENTS_BYTES // 1024} KiB: put long values in a file"
        )
    _check_range("max_restarts", launch.max_restarts, 0, MAX_RESTARTS)


def _check_text(what: str, text: str, max_length: int) -> None:
    """Anything goes but what no process can be given: quotes, newlines and signs of any script are fine."""
    if "\0" in text:
        raise UsageError(f"{what} contains a NUL character: remove it")
    try:
        length = len(text.encode())
    except UnicodeEncodeError:
        raise UsageError(f"{what} is not valid Unicode: expected text in UTF-8") from None
    if length > max_length:
        raise UsageError(f"{what} is {length} bytes long: expected at most {max_length}")


def _check_range(what: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise UsageError(f"{what} is {value}: expected {low} to {high}")
