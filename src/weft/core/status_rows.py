"""Jobs, nodes and decisions as JSON: the rows of the REST API, of :mod:`weft.client` and of ``--json``.

Field names are stable.  Times are seconds since the epoch.
"""

from __future__ import annotations

from typing import TypedDict


class JobRow(TypedDict):
    """A row of ``weft status --json``."""

    id: str
    name: str
    state: str
    workers: int
    min_workers: int
    max_workers: int
    step: int
    total_steps: int | None
    attempt: int
    restarts: int
    submitted_s: float
    started_s: float | None
    finished_s: float | None
    queue_position: int | None
    """1 is the next to start; None unless it waits."""
    expected_start_s: float | None
    """By present sizes and known or guessed lengths; None unless it waits and will fit."""
    reason: str


class JobDetail(JobRow):
    """Everything about one job."""

    command: list[str]
    cwd: str
    user: str
    weight: float
    priority: int
    devices: list[int]
    partner: str | None
    step_s: float
    exposed_s: float
    loss: float | None
    exit_code: int | None


class SentenceRow(TypedDict):
    """Something that happened to a job, and why."""

    time_s: float
    sentence: str


class DecisionRow(TypedDict):
    """A decision that changed something: the devices of each job from then on."""

    time_s: float
    devices: dict[str, list[int]]
    reasons: dict[str, str]


class DeviceRow(TypedDict):
    """A device and the jobs that hold it: none, one, or the two of a pair."""

    device: int
    name: str
    """Its node and its number there, such as ``gpu-7/2``."""
    jobs: list[str]


class NodeRow(TypedDict):
    """A node with its devices."""

    node: int
    name: str
    up: bool
    status: str
    """up, drained (by an operator), leaving (the engine says so) or lost."""
    devices: list[DeviceRow]


class OutlookRow(TypedDict):
    """What a job would get if it were submitted now."""

    workers: int
    reason: str


class HealthRow(TypedDict):
    """The controller that responds."""

    status: str
    version: str
    policy: str
    pid: int
    warnings: list[str]


class PurgeRow(TypedDict):
    """What ``weft purge`` deleted, or would delete."""

    jobs: list[str]
    freed_bytes: int
    problems: list[str]


class OverviewRow(TypedDict):
    """The number of jobs in each state, and those worth showing first."""

    jobs: list[JobDetail]
    counts: dict[str, int]


class NumberedJob(JobDetail):
    """A job with its place in the order of submission."""

    number: int


class ChangesRow(TypedDict):
    """What changed since an earlier version; ``whole`` means that this is everything."""

    version: str
    whole: bool
    health: HealthRow | None
    jobs: list[NumberedJob]
    nodes: list[NodeRow] | None
    decisions: list[DecisionRow]


FINAL_STATES = frozenset({"COMPLETED", "FAILED", "CANCELLED"})
