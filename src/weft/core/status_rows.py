"""Jobs, nodes, and decisions as JSON: the rows of the REST API, of :mod:`weft.client`, and of ``--json``.

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
    waited_s: float
    """How long it has had no devices, at the time of the response."""
    ran_s: float
    """How long it has held devices.  The two add up to the time from submission until it finished, or until now."""
    queue_position: int | None
    """1 is the next to start; None unless it waits."""
    expected_start_s: float | None
    """If jobs keep their current sizes; None unless it waits and the ends of all jobs before it are known."""
    reason: str
    """Why it is in this state, in a sentence."""
    reason_code: str
    """The same as a short code, such as ``Resources``; empty if an older version of weft wrote the sentence."""


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
    """Mean of the newest losses that its workers have reported."""
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
    """up, drained (by an operator), leaving (according to the engine), or lost."""
    kind: str
    """The kind of its devices, such as ``A100``; empty if none is declared."""
    devices: list[DeviceRow]


class OutlookRow(TypedDict):
    """What a job would get if it were submitted now."""

    workers: int
    reason: str
    reason_code: str


class HealthRow(TypedDict):
    """The controller that responds."""

    status: str
    version: str
    policy: str
    pid: int
    warnings: list[str]
    permission: str
    """What the caller may do: view (and cancel), or change."""


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


class HistoryPoint(TypedDict):
    """Reports of a job that are close together, averaged; None for what is not known."""

    time_s: float
    step: int
    loss: float | None
    step_s: float | None
    steps_per_s: float | None
    """Progress since the previous point."""
    exposed_share: float | None
    """Exposed communication over step time."""
    workers: int
    memory_bytes: int | None
    """Peak memory of any of its workers."""


class MarkRow(TypedDict):
    """A change of a job's workers."""

    time_s: float
    kind: str
    """started, resized, restarted, paired, unpaired, or finished."""
    workers: int
    text: str


class SpeedRow(TypedDict):
    """Step time at one size."""

    workers: int
    predicted_step_s: float | None
    """What was expected before the job ran at this size; None for the first size it ran at."""
    measured_step_s: float | None
    """Median; None if the job has not run at this size."""


class PhasesRow(TypedDict):
    """Where the time of recent steps went, in seconds per step; None for what the job does not measure."""

    forward_s: float | None
    backward_s: float | None
    exposed_s: float | None
    update_s: float | None
    turn_wait_s: float | None


class HistoryRow(TypedDict):
    """The whole life of a job, in a bounded number of points."""

    id: str
    points: list[HistoryPoint]
    marks: list[MarkRow]
    speeds: list[SpeedRow]
    phases: PhasesRow | None


class BarRow(TypedDict):
    """One attempt of a job, on its devices."""

    job: str
    name: str
    attempt: int
    start_s: float
    end_s: float | None
    """None while it runs."""
    devices: list[str]
    workers: int


class TimelineRow(TypedDict):
    """Which job had which devices when."""

    since_s: float
    until_s: float
    bars: list[BarRow]


class PlanJobRow(TypedDict):
    """One job of a forecast; times are seconds from now."""

    id: str
    name: str
    start_s: float
    """0 if it has started."""
    end_s: float
    workers: list[list[float]]
    """[time_s, workers] at the beginning and at every resize."""


class PlanRow(TypedDict):
    """The simulator's forecast for the jobs that are running or waiting."""

    policy: str
    devices: int
    mean_jct_s: float | None
    """From submission to end; None without jobs."""
    makespan_s: float | None
    """From now until the last one ends."""
    jobs: list[PlanJobRow]


class WhatifRow(TypedDict):
    """The forecast without changes, next to the one for a question."""

    plan: PlanRow
    whatif: PlanRow
    assumptions: list[str]


FINAL_STATES = frozenset({"COMPLETED", "FAILED", "CANCELLED"})


def workers_of_range(job: JobRow) -> str:
    """How many workers it has, and the allowed range: ``2 of 1-4``."""
    low, high = job["min_workers"], job["max_workers"]
    return f"{job['workers']} of {low}" if low == high else f"{job['workers']} of {low}-{high}"
