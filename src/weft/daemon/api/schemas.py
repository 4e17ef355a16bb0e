"""What may be sent to the controller, and what comes back, for the border and for OpenAPI.

Types are strict: the text ``"4"`` is no number, an unknown key is an error.  What a job may be is decided by
:class:`weft.core.submission.Submission`, here and everywhere else.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from weft.core.job import Launch
from weft.core.status_rows import DecisionRow, JobDetail, JobRow, NodeRow, SentenceRow
from weft.core.submission import Submission

# Beyond this a number is a mistake, whatever it counts; Submission says so more precisely.
_Count = Annotated[int, Field(ge=-(2**53), le=2**53)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class JobRequest(_Strict):
    """A job to be submitted."""

    command: list[str] = Field(description="argument list, never a line for a shell")
    cwd: str = Field(description="folder to run in, a whole path")
    name: str = ""
    environment: dict[str, str] = Field(default_factory=dict, description="beside what the controller runs in")
    max_restarts: _Count = Field(default=0, description="how often it is started again after it failed by itself")
    min_workers: _Count = 1
    max_workers: _Count = 1
    requested_workers: _Count | None = Field(default=None, description="for policies that never resize")
    sizes: list[_Count] = Field(default_factory=list, description="worker counts to choose from; empty: all")
    user: str = ""
    weight: float = 1.0
    priority: _Count = 0
    may_share: bool = True
    total_steps: _Count | None = None

    def submission(self) -> Submission:
        """The same, checked."""
        return Submission(
            Launch(tuple(self.command), self.cwd, dict(self.environment), self.max_restarts),
            title=self.name,
            min_workers=self.min_workers,
            max_workers=self.max_workers,
            requested_workers=self.requested_workers,
            sizes=tuple(self.sizes),
            user=self.user,
            weight=self.weight,
            priority=self.priority,
            may_share=self.may_share,
            total_steps=self.total_steps,
        )


class ShutdownRequest(_Strict):
    """How the controller should go down."""

    stop_jobs: bool = Field(default=False, description="stop the workers first; otherwise they go on without it")


class Problem(BaseModel):
    """What was wrong with a request."""

    error: str


class Submitted(BaseModel):
    """The id of a job that is on disk."""

    id: str


class Jobs(BaseModel):
    """Jobs in order of submission; with ``detail`` each is a ``JobDetail``."""

    jobs: list[JobRow] | list[JobDetail]


class Sentences(BaseModel):
    """What happened to a job and why, oldest first; the last sentence is about now."""

    sentences: list[SentenceRow]


class Nodes(BaseModel):
    """The nodes of the cluster."""

    nodes: list[NodeRow]


class Decisions(BaseModel):
    """The last decisions, oldest first."""

    decisions: list[DecisionRow]
