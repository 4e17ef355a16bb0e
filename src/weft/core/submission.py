"""A job as submitted: everything but the id and the time, which the controller assigns.

The job file, the command line, and the REST API all end here, so that a job rejected by one is rejected by all.

>>> job = Submission(Launch(("python", "train.py"), "/home/ana"), name="resnet", max_workers=4)
>>> job.spec("j7", submitted_s=10.0).allowed_sizes(num_devices=2)
(1, 2)
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Annotated, Any, Final, get_args, get_type_hints

from weft.core.command_line import Option
from weft.core.job import JobSpec, Launch
from weft.errors import UsageError

MAX_WORKERS = 10_000
MAX_NAME_BYTES = 1000
MAX_USER_BYTES = 64
# Linux's limit for one argument, and a limit for all of them together that is far below Linux's.
MAX_ARGUMENT_BYTES = 128 * 1024
MAX_ARGUMENTS_BYTES = 512 * 1024
MAX_TOTAL_STEPS = 2**53
MAX_BATCH = 1_000_000_000
MAX_PRIORITY = 1_000_000
MAX_WEIGHT = 1_000_000
_ENVIRONMENT_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_WORKER_RANGE = re.compile(r"([0-9]{1,9})(?::([0-9]{1,9}))?")
_BATCH_RANGE = re.compile(r"([0-9]{1,10}):([0-9]{1,10})")


@dataclass(frozen=True, slots=True)
class Submission:
    """What was asked for; immediately rejects what could never be started.

    A field added here, or to ``Launch``, becomes a key of the REST API, of the job file, and of the published schema.
    """

    launch: Launch
    name: Annotated[str, Option("the job's name", "the script's name")] = ""
    min_workers: Annotated[int, Option("smallest number of workers", "1", min=1, max=MAX_WORKERS)] = 1
    max_workers: Annotated[int, Option("largest number of workers", "1", min=1, max=MAX_WORKERS)] = 1
    requested_workers: Annotated[
        int | None, Option("number of workers under a policy that never resizes", "the largest", min=1, max=MAX_WORKERS)
    ] = None
    sizes: Annotated[
        tuple[int, ...],
        Option("numbers of workers it can run with, such as [1, 2, 4]", "all of the range", min=1, max=MAX_WORKERS),
    ] = ()
    user: Annotated[str, Option("whose quota it counts against", "whoever submits it")] = ""
    weight: Annotated[
        float, Option("share of the cluster relative to other jobs", "1", min=1 / MAX_WEIGHT, max=MAX_WEIGHT)
    ] = 1.0
    priority: Annotated[
        int, Option("jobs with a higher priority are served first", "0", min=-MAX_PRIORITY, max=MAX_PRIORITY)
    ] = 0
    may_share: Annotated[bool, Option("whether it may take turns with another job on its devices", "yes")] = True
    total_steps: Annotated[
        int | None, Option("number of training steps", "as reported by the script", min=1, max=MAX_TOTAL_STEPS)
    ] = None

    def __post_init__(self) -> None:
        _check_text("the job's name", self.name, MAX_NAME_BYTES)
        _check_text("the user's name", self.user, MAX_USER_BYTES)
        _check_launch(self.launch)
        for key, one in FIELDS.items():
            value = one.of(self)
            if one.option.min > -math.inf and value is not None:
                for number in value if isinstance(value, tuple) else (value,):
                    _check_range(key, number, one.option.min, one.option.max)
        if self.requested_workers is not None:
            _check_range("requested_workers", self.requested_workers, self.min_workers, self.max_workers)
        if self.launch.batch:
            _check_batch(self.launch, self.max_workers)
        self.spec("this-job", submitted_s=0.0)

    def spec(self, job_id: str, submitted_s: float) -> JobSpec:
        """The job as policies see it, once it has an id and a time."""
        values = {one.name: getattr(self, one.name) for one in fields(JobSpec) if one.name in FIELDS}
        values["requested_workers"] = self.requested_workers or self.max_workers
        return JobSpec(job_id, submitted_s, **values)

    def document(self) -> dict[str, Any]:
        """The body of ``POST /v1/jobs``."""
        values = {key: one.of(self) for key, one in FIELDS.items()}
        return {key: list(value) if isinstance(value, tuple) else value for key, value in values.items()}

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Submission:
        """The job that this document describes; missing keys have their defaults."""
        launch: dict[str, Any] = {}
        values: dict[str, Any] = {}
        for key, value in document.items():
            one = FIELDS[key]
            (launch if one.of_launch else values)[one.name] = tuple(value) if isinstance(value, list) else value
        return cls(Launch(**launch), **values)


@dataclass(frozen=True, slots=True)
class SubmissionField:
    """A key of a job's document: what it is, and the field it becomes."""

    name: str
    of_launch: bool
    kind: Any
    option: Option
    default: Any
    """``MISSING`` if it must be given."""

    def of(self, job: Submission) -> Any:
        return getattr(job.launch if self.of_launch else job, self.name)


def _fields() -> dict[str, SubmissionField]:
    """By key: the fields of ``Launch`` (whose ``argv`` is called ``command``) and of ``Submission``."""
    found = {}
    for owner in (Launch, Submission):
        hints = get_type_hints(owner, include_extras=True)
        for one in fields(owner):
            if one.name != "launch":
                kind, option = get_args(hints[one.name])
                default = one.default if one.default_factory is MISSING else one.default_factory()
                key = "command" if one.name == "argv" else one.name
                found[key] = SubmissionField(one.name, owner is Launch, kind, option, default)
    return found


FIELDS: Final = _fields()
WORKERS: Final = Option("number of workers, such as 2, or a range such as 1:4", "1", metavar="N|MIN:MAX")
"""``min_workers`` and ``max_workers`` as users write them."""


def worker_range(text: str) -> tuple[int, int]:
    """The smallest and largest number in ``--workers`` or ``workers:``.

    >>> worker_range("2"), worker_range("1:4")
    ((2, 2), (1, 4))
    """
    found = _WORKER_RANGE.fullmatch(text)
    if found is None:
        raise UsageError(f"workers is {text!r}: expected a number such as 2, or a range such as 1:4")
    low = int(found[1])
    high = low if found[2] is None else int(found[2])
    if not 1 <= low <= high <= MAX_WORKERS:
        raise UsageError(f"workers is {text!r}: expected 1 to {MAX_WORKERS}, the smaller number first, as in 1:4")
    return low, high


def batch_range(text: str) -> tuple[int, int]:
    """The smallest and largest global batch size in ``--batch`` or ``batch:``.

    >>> batch_range("256:2048")
    (256, 2048)
    """
    found = _BATCH_RANGE.fullmatch(text)
    low, high = (int(found[1]), int(found[2])) if found else (0, 0)
    if not 1 <= low < high <= MAX_BATCH:
        raise UsageError(
            f"batch is {text!r}: expected the smallest and the largest global batch size, such as 256:2048"
        )
    return low, high


def _check_batch(launch: Launch, max_workers: int) -> None:
    low, _ = batch_range(launch.batch)
    if max_workers < 2:
        raise UsageError(
            f"batch is {launch.batch!r}, but the job has one worker: the gradient noise that decides the batch size is "
            "measured with two or more; widen --workers, such as 1:4, or leave --batch out"
        )
    if low < max_workers:
        raise UsageError(
            f"batch is {launch.batch!r}, but the job may have {max_workers} workers: expected at least one sample per "
            "worker; raise the smallest batch size, or lower --workers"
        )


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


def _check_text(what: str, text: str, max_length: int) -> None:
    """Reject only what no process can be given: quotes, newlines, and characters of any script are fine."""
    if "\0" in text:
        raise UsageError(f"{what} contains a NUL character: remove it")
    try:
        length = len(text.encode())
    except UnicodeEncodeError:
        raise UsageError(f"{what} is not valid Unicode: expected text in UTF-8") from None
    if length > max_length:
        raise UsageError(f"{what} is {length} bytes long: expected at most {max_length}")


def _check_range(what: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise UsageError(f"{what} is {value}: expected a number from {low} to {high}")


def this_user() -> str:
    """The name of the user who runs this process, or else the user id."""
    import pwd  # only to submit a job

    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())
