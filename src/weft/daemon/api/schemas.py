"""Requests to the controller and its responses, for validation and for OpenAPI.

Types are strict: the text ``"4"`` is not a number, and an unknown key is an error.  Whether a job is valid is decided
by :class:`weft.core.submission.Submission`, here and everywhere else.
"""

from __future__ import annotations

import functools
import operator
import types
from collections.abc import Mapping
from dataclasses import MISSING
from types import GenericAlias
from typing import Annotated, Any, get_args, get_origin, get_type_hints, is_typeddict

from pydantic import BaseModel, ConfigDict, Field, create_model

from weft.core.cluster import MAX_FORECAST_DEVICES
from weft.core.status_rows import (
    ChangesRow,
    DecisionRow,
    HealthRow,
    HistoryRow,
    JobDetail,
    JobRow,
    NodeRow,
    OutlookRow,
    OverviewRow,
    PurgeRow,
    SentenceRow,
    TimelineRow,
    WhatifRow,
)
from weft.core.submission import FIELDS, MAX_PRIORITY, MAX_WEIGHT, MAX_WORKERS, Submission
from weft.daemon.api.sessions import Permission
from weft.sim.queue_forecast import Question

# A larger number is a mistake, whatever it counts; Submission has the exact limits.
_Count = Annotated[int, Field(ge=-(2**53), le=2**53)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class NodeRequest(_Strict):
    """A node to be drained or resumed."""

    name: str = Field(max_length=300)


def _job_fields() -> dict[str, Any]:
    """The fields of a job's document, with JSON types."""
    kinds: dict[Any, Any] = {str: str, bool: bool, float: float, int: _Count, int | None: _Count | None}
    kinds |= {tuple[str, ...]: list[str], tuple[int, ...]: list[_Count], Mapping[str, str]: dict[str, str]}
    return {
        key: (
            kinds[one.kind],
            Field(description=one.option.help)
            if one.default is MISSING
            else Field(default=_plain(one.default), description=f"{one.option.help}; default: {one.option.default}"),
        )
        for key, one in FIELDS.items()
    }


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


class JobRequest(create_model("JobDocument", __base__=_Strict, **_job_fields())):  # type: ignore[misc]
    """A job to be submitted."""

    def submission(self) -> Submission:
        """The job, validated."""
        return Submission.from_document(self.model_dump())


class PurgeRequest(_Strict):
    """Which finished jobs to delete."""

    older_than_s: float = Field(gt=0, le=1e10, allow_inf_nan=False, description="only jobs that ended longer ago")
    dry_run: bool = Field(default=False, description="report what would be deleted, but delete nothing")


class ChangeRequest(_Strict):
    """Changes to a job; fields that are left out stay unchanged."""

    weight: float | None = Field(default=None, ge=1 / MAX_WEIGHT, le=MAX_WEIGHT, allow_inf_nan=False)
    priority: int | None = Field(default=None, ge=-MAX_PRIORITY, le=MAX_PRIORITY)
    min_workers: int | None = Field(default=None, ge=1, le=MAX_WORKERS)
    max_workers: int | None = Field(default=None, ge=1, le=MAX_WORKERS)


class LoginRequest(_Strict):
    """What the session may do."""

    permission: Permission = Field(default=Permission.VIEW, strict=False, description="view, or also change")


class WhatifChange(_Strict):
    """Hypothetical changes to one job."""

    weight: float | None = Field(default=None, gt=0, le=MAX_WEIGHT, allow_inf_nan=False)
    min_workers: int | None = Field(default=None, ge=1, le=2**53)
    max_workers: int | None = Field(default=None, ge=1, le=2**53)


class WhatifRequest(_Strict):
    """Hypothetical changes; none by default."""

    policy: str | None = Field(default=None, max_length=100, description="a different policy")
    devices: int | None = Field(
        default=None, ge=1, le=MAX_FORECAST_DEVICES, description="a different number of usable devices"
    )
    jobs: dict[str, WhatifChange] = Field(default_factory=dict, max_length=1000, description="by id")

    def question(self) -> Question:
        """The question, with only the given values."""
        jobs = {job_id: change.model_dump(exclude_none=True) for job_id, change in self.jobs.items()}
        return Question(self.policy, self.devices, jobs)


class ShutdownRequest(_Strict):
    """How the controller should shut down."""

    stop_jobs: bool = Field(default=False, description="stop the workers first; otherwise they keep running")


def described(row: Any) -> type[BaseModel]:
    """A pydantic model of a row of :mod:`weft.core.status_rows`, for OpenAPI.

    The rows are plain ``TypedDict``s, so that the client can import them without pydantic; pydantic does not accept
    those before Python 3.12.
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
    """A response with one list in it, under ``name``."""
    fields: dict[str, Any] = {name: (GenericAlias(list, (described(row),)), ...)}
    return create_model(name.capitalize(), **fields)


Problem = create_model("Problem", error=(str, ...))
Submitted = create_model("Submitted", id=(str, ...))
Job = described(JobDetail)
JobHistory = described(HistoryRow)
Jobs = _list_of("jobs", JobRow)
Sentences = _list_of("sentences", SentenceRow)
Nodes = _list_of("nodes", NodeRow)
Decisions = _list_of("decisions", DecisionRow)
Outlook = described(OutlookRow)
Health = described(HealthRow)
JobTimeline = described(TimelineRow)
Whatif = described(WhatifRow)
Overview = described(OverviewRow)
Changes = described(ChangesRow)
Purged = described(PurgeRow)
