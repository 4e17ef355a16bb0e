"""What may be sent to the controller, and what comes back, for the border and for OpenAPI.

Types are strict: the text ``"4"`` is no number, an unknown key is an error.  What a job may be is decided by
:class:`weft.core.submission.Submission`, here and everywhere else.
"""

from __future__ import annotations

import functools
import operator
import types
from types import GenericAlias
from typing import Annotated, Any, get_args, get_origin, get_type_hints, is_typeddict

from pydantic import BaseModel, ConfigDict, Field, create_model

from weft.core.job import Launch
from weft.core.status_rows import (
    ChangesRow,
    DecisionRow,
    HealthRow,
    JobDetail,
    JobRow,
    NodeRow,
    OutlookRow,
    OverviewRow,
    PurgeRow,
    SentenceRow,
)
from weft.core.submission import Submission

# Beyond this a number is a mistake, whatever it counts; Submission says so more precisely.
_Count = Annotated[int, Field(ge=-(2**53), le=2**53)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class NodeRequest(_Strict):
    """A node to be drained or resumed."""

    name: str = Field(max_length=300)


class JobRequest(_Strict):
    """A job to be submitted."""

    command: list[str] = Field(description="argument list, never a line for a shell")
    cwd: str = Field(description="folder to run in, an absolute path")
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
            name=self.name,
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


class PurgeRequest(_Strict):
    """Which jobs go."""

    older_than_s: float = Field(gt=0, le=1e10, allow_inf_nan=False, description="only jobs that ended longer ago")
    dry_run: bool = Field(default=False, description="say what would go, delete nothing")


class ShutdownRequest(_Strict):
    """How the controller should go down."""

    stop_jobs: bool = Field(default=False, description="stop the workers first; otherwise they keep running")


def described(row: Any) -> type[BaseModel]:
    """A row of :mod:`weft.core.status_rows` as OpenAPI wants it described.

    Those rows are plain ``TypedDict``s, which the client can import without pydantic; pydantic in turn does not take
    them as they are before Python 3.12.
    """
    fields: dict[str, Any] = {name: (_described_type(kind), ...) for name, kind in get_type_hints(row).items()}
    return create_model(row.__name__, __doc__=row.__doc__, **fields)


def _described_type(kind: Any) -> Any:
    if is_typeddict(kind):
        return described(kind)
    if get_origin(kind) is list and is_typeddict(inner := get_args(kind)[0]):
        return GenericAlias(list, (described(inner),))
    if get_origin(kind) is types.UnionType:
        first, *others = map(_described_type, get_args(kind))
        return functools.reduce(operator.or_, others, first)
    return kind


def _list_of(name: str, row: Any) -> type[BaseModel]:
    """An answer with one list in it, under ``name``."""
    fields: dict[str, Any] = {name: (GenericAlias(list, (described(row),)), ...)}
    return create_model(name.capitalize(), **fields)


Problem = create_model("Problem", error=(str, ...))
Submitted = create_model("Submitted", id=(str, ...))
Job = described(JobDetail)
Jobs = _list_of("jobs", JobRow)
Sentences = _list_of("sentences", SentenceRow)
Nodes = _list_of("nodes", NodeRow)
Decisions = _list_of("decisions", DecisionRow)
Outlook = described(OutlookRow)
Health = described(HealthRow)
Overview = described(OverviewRow)
Changes = described(ChangesRow)
Purged = described(PurgeRow)
