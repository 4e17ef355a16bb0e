"""What the controller can be asked, by whoever serves it to others: the REST routes, tests, a notebook.

Every method may be called from any thread.  ``submit``, ``cancel`` and ``shutdown`` return when what they did is on
disk; many callers at once share one commit.  Everything that reads returns at once and sees a consistent state.
An asyncio server calls the writing methods in threads (FastAPI does so for routes that are plain ``def``).

    UnknownJobError     no such job (or attempt, or worker): a 404
    UsageError          the request is invalid: a 400
    StoreError          the journal cannot be written (disk full, ...): nothing was acknowledged: a 503
    StoppingError       the controller is shutting down: a 503
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from weft.control.state import Job
from weft.core.submission import Submission
from weft.errors import UsageError, WeftError

LogStream = Literal["out", "err"]


class UnknownJobError(UsageError):
    """No job of that id, or no such attempt or worker of it."""


class StoppingError(WeftError):
    """The controller is shutting down and accepts no new requests."""


@dataclass(frozen=True, slots=True)
class NodeView:
    """One node and who has its devices."""

    node: int
    name: str
    is_up: bool
    devices: Mapping[int, tuple[str, ...]]
    """Device -> ids of the jobs that hold it: none, one, or the two of a pair."""


@dataclass(frozen=True, slots=True)
class Sentence:
    """Something that happened to a job, and why, in words."""

    at_s: float
    text: str


@dataclass(frozen=True, slots=True)
class Decision:
    """One decision of the policy that changed something."""

    at_s: float
    devices: Mapping[str, tuple[int, ...]]
    """Who has which from then on."""
    reasons: Mapping[str, str]
    """Why, for every job whose allocation changed."""


@dataclass(frozen=True, slots=True)
class Outlook:
    """What would become of a job were it submitted now (``weft submit --dry-run``)."""

    workers: int
    reason: str


class PurgedJobs(Protocol):
    """What was deleted, or would be."""

    @property
    def job_ids(self) -> tuple[str, ...]: ...

    @property
    def freed_bytes(self) -> int: ...

    @property
    def problems(self) -> tuple[str, ...]: ...


class LogFile(Protocol):
    """The output of one worker of one attempt."""

    path: Path
    attempt: int
    rank: int

    def read(self, max_bytes: int = 65536) -> bytes:
        """What has come since the last call, at most so much; empty when there is nothing new.  Never blocks."""

    def skip_to_last(self, num_bytes: int) -> int:
        """Read on from so far before the end, where that is further on; returns how much was left out."""

    def follow(self) -> AsyncIterator[bytes]:
        """Everything from the beginning, and what comes, until the attempt is over."""

    def close(self) -> None:
        """Let go of the file."""


class ControllerApi(Protocol):
    """The controller in one process; :class:`weft.daemon.service.Controller` is the real one."""

    def submit(self, submission: Submission) -> str:
        """Take the job in and return its id, once it is durable."""

    def cancel(self, job_id: str, reason: str = "cancelled by its owner") -> None:
        """Ask for the end of a job.  Asked a second time, its workers are killed.  A job that is over stays so."""

    def jobs(self) -> list[Job]:
        """All jobs in order of submission, with the newest step each has reported."""

    def job(self, job_id: str) -> Job:
        """One job."""

    def explain(self, job_id: str) -> list[Sentence]:
        """What happened to the job and why, oldest first; the last sentence is about now."""

    def decisions(self, last: int = 100) -> list[Decision]:
        """The last decisions, oldest first."""

    def outlook(self, submission: Submission) -> Outlook:
        """What the policy would give this job now; changes nothing."""

    def nodes(self) -> list[NodeView]:
        """Nodes and who has their devices."""

    def logs(
        self, job_id: str, attempt: int | None = None, rank: int | None = None, stream: LogStream = "out"
    ) -> LogFile:
        """Output of a worker; by default of worker 0 of the newest attempt that has any."""

    def wait(self, job_ids: Sequence[str], timeout_s: float | None = None) -> dict[str, Job]:
        """Block until all of them are over, or the time is up; returns them as they are then."""

    def purge(self, older_than_s: float, *, dry_run: bool = False) -> PurgedJobs:
        """Delete jobs that have been over for longer than this, with their logs and checkpoints."""

    def warnings(self) -> list[str]:
        """What somebody should look at now: a full disk, a wrong clock."""

    def shutdown(self, stop_jobs: bool = False) -> None:
        """Start shutting down and return; ``stop_jobs`` stops the workers first (jobs stay in the queue)."""

    def metrics(self) -> bytes:
        """Prometheus text."""

    @property
    def policy_name(self) -> str:
        """The policy in force."""
