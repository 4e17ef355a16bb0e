"""What becomes of the jobs that are running and waiting now: the replay, starting with the controller's own state.

Running jobs keep their devices and their progress.  What a job will do is what the controller expects: measured step
times where there are some, and the remaining steps it believes in.  Times in the answer are seconds from now.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from weft.control.draft import altered
from weft.control.job_table import JobTable
from weft.control.reducer import reduce
from weft.control.state import Job, JobState, State
from weft.core.cluster import MAX_FORECAST_DEVICES, Cluster
from weft.core.events import Fate, WorkersExited
from weft.core.plural import plural
from weft.core.speed import SpeedCurve, StepTime
from weft.core.status_rows import PlanRow
from weft.elastic.registry import policy_named
from weft.elastic.rules import Rules
from weft.errors import UsageError
from weft.perf.exploration import explored_curve
from weft.perf.families import UNKNOWN_STEP_S
from weft.perf.job_lengths import least_assumed_s
from weft.sim.replay import continued
from weft.sim.replay_options import SimulationOptions
from weft.sim.result import SimulationResult
from weft.sim.workload import TableProfile, TrueJob

_MAX_LISTED = 3
_JOBS_PER_DECISION_S = 50
"""With many jobs, decisions are simulated at intervals: one second per this many jobs."""


@dataclass(frozen=True, slots=True)
class KnownJob:
    """What the controller knows about an active job."""

    measured: Mapping[int, StepTime]
    """Step times by size, where it has run."""
    expected: Mapping[int, StepTime]
    """The speed curve that decisions use now."""
    remaining_steps: float
    is_length_known: bool
    is_fixed: bool
    """Whether it runs and cannot be resized."""


@dataclass(frozen=True, slots=True)
class Queue:
    """Everything a forecast starts from."""

    state: State
    now_s: float
    known: Mapping[str, KnownJob]
    policy: str
    hold_s: float
    review_s: float
    restart_s: float
    handover_s: float | None
    """``None`` if devices are not shared."""
    quotas: Mapping[str, int] = field(default_factory=dict)
    usual_s: float = 60.0
    """Assumed length of a job about which nothing is known."""


@dataclass(frozen=True, slots=True)
class Question:
    """What would be different; nothing, by default."""

    policy: str | None = None
    devices: int | None = None
    jobs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Job -> new weight, min_workers, max_workers."""


def forecast(queue: Queue, question: Question) -> PlanRow:
    """When each job starts and ends, and with how many workers; without those that their users' quotas keep waiting."""
    state = _asked(queue, question)
    state = _without(state, [job.id for job, _, _ in _beyond_quotas(queue, state)])
    name = question.policy or queue.policy
    policy = policy_named(name, Rules(hold_s=queue.hold_s, review_s=queue.review_s))
    if not state.jobs.active:
        return {
            "policy": name,
            "devices": state.cluster.num_devices,
            "mean_jct_s": None,
            "makespan_s": None,
            "jobs": [],
        }
    jobs = {job.id: _true_job(job, queue.known[job.id], state.cluster) for job in state.jobs.active.values()}
    options = SimulationOptions(
        decision_interval_s=math.ceil(len(jobs) / _JOBS_PER_DECISION_S),
        restart_s=queue.restart_s,
        explore=True,
        crossover=queue.handover_s is not None,
        handover_s=queue.handover_s or 0.0,
    )
    tried = {job_id: frozenset(queue.known[job_id].measured) for job_id in jobs}
    guessed = frozenset(job_id for job_id in jobs if not queue.known[job_id].is_length_known)
    fixed = frozenset(job_id for job_id in jobs if queue.known[job_id].is_fixed)
    result = continued(state, queue.now_s, jobs, tried, guessed, fixed, policy, options, queue.quotas)
    return _row(result, state, queue.now_s)


def left_out(queue: Queue, question: Question) -> list[str]:
    """The jobs that the forecast does not include, and why, in sentences."""
    return [
        f"{_name(job)} would wait until the quota of {job.spec.user} ({quota}) or its minimum "
        f"({plural(least, 'worker')}) changes: it is not in the forecast."
        for job, least, quota in _beyond_quotas(queue, _asked(queue, question))
    ]


def assumptions(queue: Queue) -> list[str]:
    """What the forecast assumes, in sentences."""
    active = [job for job in queue.state.jobs.active.values() if not job.is_cancelled]
    if not active:
        return []
    least_s = least_assumed_s(queue.usual_s, queue.restart_s)
    said = [f"Every start costs {queue.restart_s:.1f} s, no job is submitted or canceled, and none fails."]
    for sentence, sentence_of_several, names in (
        (
            "The length of {} is not known: it is a guess, "
            f"from finished jobs, the work done so far, or an assumed {least_s:.0f} s.",
            "The lengths of {} are not known: they are guesses, "
            f"from finished jobs, the work done so far, or an assumed {least_s:.0f} s.",
            [_name(job) for job in active if not queue.known[job.id].is_length_known and not job.progress.total_steps],
        ),
        (
            "The speed of {} has not been measured: it is assumed to be that of similar jobs, or else of all jobs, or "
            f"else {UNKNOWN_STEP_S:g} s per step.",
            "The speeds of {} have not been measured: they are assumed to be those of similar jobs, or else of all "
            f"jobs, or else {UNKNOWN_STEP_S:g} s per step.",
            [_name(job) for job in active if not queue.known[job.id].measured],
        ),
        (
            "{} cannot be resized and keeps its workers.",
            "{} cannot be resized and keep their workers.",
            [_name(job) for job in active if queue.known[job.id].is_fixed],
        ),
    ):
        if names:
            said.append((sentence if len(names) == 1 else sentence_of_several).format(_listed(names)))
    if queue.state.cluster.is_mixed:
        said.append("Devices of all kinds are taken to be equally fast.")
    said.append("At sizes a job has not run with, its speed is predicted from those it has.")
    return said


def _listed(names: list[str]) -> str:
    """
    >>> _listed(["a"]), _listed(["a", "b"]), _listed(["a", "b", "c", "d", "e"])
    ('a', 'a and b', 'a, b, c, and 2 more jobs')
    """
    if len(names) > _MAX_LISTED:
        names = [*names[:_MAX_LISTED], plural(len(names) - _MAX_LISTED, "more job")]
    *others, last = names
    return f"{', '.join(others)}{',' if len(others) > 1 else ''} and {last}" if others else last


def _name(job: Job) -> str:
    return job.name[:80] or job.id


def _without_stopping(state: State, now_s: float) -> State:
    """Attempts that were asked to stop have done so; canceled jobs are gone."""
    for job in list(state.jobs.active.values()):
        if job.state is JobState.STOPPING:
            state, _ = reduce(state, WorkersExited(now_s, job.id, job.attempt, Fate.STOPPED))
    return replace(state, jobs=JobTable(job for job in state.jobs.active.values() if not job.is_cancelled))


def _asked(queue: Queue, question: Question) -> State:
    """The state that the forecast of ``question`` starts from."""
    state = _without_stopping(queue.state, queue.now_s)
    state = replace(state, cluster=replace(state.cluster, kinds=()))
    for job_id, changes in question.jobs.items():
        state = _changed(state, job_id, changes)
    return state if question.devices is None else _resized(state, question.devices, queue.now_s)


def _beyond_quotas(queue: Queue, state: State) -> list[tuple[Job, int, int]]:
    """Jobs that need more devices than their user may hold, and both numbers; not those that cannot be stopped."""
    found = []
    for job in state.jobs.active.values():
        quota = queue.quotas.get(job.spec.user)
        least = next(iter(job.spec.allowed_sizes(state.cluster.num_devices)), job.spec.min_workers)
        if quota is not None and least > quota and not (job.devices and queue.known[job.id].is_fixed):
            found.append((job, least, quota))
    return found


def _without(state: State, job_ids: Collection[str]) -> State:
    """Without these jobs; the partner of one keeps the devices alone."""
    alone = {"partner": None, "fills": False, "wanted_partner": None, "wanted_fills": False}
    kept = [job for job in state.jobs.active.values() if job.id not in job_ids]
    jobs = [altered(job, alone) if {job.partner, job.wanted_partner} & {*job_ids} else job for job in kept]
    return replace(state, jobs=JobTable(jobs)) if job_ids else state


def _changed(state: State, job_id: str, changes: Mapping[str, Any]) -> State:
    job = state.jobs.active.get(job_id)
    if job is None:
        raise UsageError(f"job {job_id} is not running or waiting: expected the id of one that is")
    spec = replace(job.spec, **changes)
    changed = altered(job, {"spec": spec})
    if job.wanted and not spec.min_workers <= len(job.wanted) <= spec.max_workers:
        changed = _waiting(changed)
    jobs = {**state.jobs.active, job_id: changed}
    if changed.partner != job.partner and job.partner is not None:
        jobs[job.partner] = _waiting(jobs[job.partner])
    return replace(state, jobs=JobTable(jobs.values()))


def _waiting(job: Job) -> Job:
    """The job without what it has."""
    return altered(
        job,
        {
            "state": JobState.PENDING,
            "devices": (),
            "partner": None,
            "fills": False,
            "wanted": (),
            "wanted_partner": None,
            "wanted_fills": False,
            "workers_since_s": None,
        },
    )


def _resized(state: State, num_devices: int, now_s: float) -> State:
    """On a cluster with this many usable devices; jobs whose devices are gone wait for others."""
    if not 1 <= num_devices <= MAX_FORECAST_DEVICES:
        raise UsageError(f"devices is {num_devices}: expected 1 to {MAX_FORECAST_DEVICES}")
    cluster = state.cluster
    while cluster.num_devices > num_devices:
        *others, last = cluster.devices_by_node
        is_open = cluster.num_nodes - 1 not in cluster.closed_nodes
        left = last - min(last, cluster.num_devices - num_devices) if is_open else 0
        cluster = _cut(cluster, (*others, left) if left else tuple(others))
    if cluster.num_nodes == 1 and 0 < cluster.num_devices < num_devices:
        cluster = replace(cluster, devices_by_node=(num_devices,))
    while (missing := num_devices - cluster.num_devices) > 0:
        cluster = cluster.joined_by(f"more-{cluster.num_nodes}", min(missing, max(cluster.devices_by_node)))
    top = sum(cluster.devices_by_node)
    jobs = [
        _waiting(job) if any(device >= top for device in (*job.devices, *job.wanted)) else job
        for job in state.jobs.active.values()
    ]
    return State(cluster, JobTable(jobs), now_s, state.num_events)


def _cut(cluster: Cluster, devices_by_node: tuple[int, ...]) -> Cluster:
    num = len(devices_by_node)

    def kept(nodes: frozenset[int]) -> frozenset[int]:
        return frozenset(node for node in nodes if node < num)

    return Cluster(
        devices_by_node,
        kept(cluster.failed_nodes),
        cluster.node_names[:num],
        kept(cluster.drained_nodes),
        kept(cluster.leaving_nodes),
    )


def _true_job(job: Job, known: KnownJob, cluster: Cluster) -> TrueJob:
    spec = job.spec
    if known.is_fixed and job.devices:
        size = len(job.devices)
        spec = replace(spec, min_workers=size, max_workers=size, sizes=())
    allowed = spec.allowed_sizes(cluster.num_devices)
    if not allowed:
        raise UsageError(
            f"job {_name(job)} needs at least {plural(spec.min_workers, 'worker')}, and there would be "
            f"{plural(cluster.num_devices, 'device')}: ask about more devices, or about fewer workers"
        )
    return TrueJob(spec, TableProfile(_extended(known, allowed, cluster).times), max(known.remaining_steps, 1.0))


def _extended(known: KnownJob, sizes: tuple[int, ...], cluster: Cluster) -> SpeedCurve:
    """Step times at all sizes: each prediction reaches to twice the largest size before it."""
    times = dict(known.expected) | dict(known.measured)
    while max(times) < sizes[-1] or sizes[0] not in times:
        packed = {cluster.packed_shape(size): time for size, time in times.items()}
        wider = explored_curve(packed, sizes, cluster).times
        if wider.keys() <= times.keys():
            break
        times = {**wider, **times}
    return SpeedCurve(times)


def _row(result: SimulationResult, state: State, now_s: float) -> PlanRow:
    sizes: dict[str, list[tuple[float, int]]] = {}
    for span in sorted(result.spans, key=lambda span: span.start_s):
        sizes.setdefault(span.job, [])
        if not sizes[span.job] or sizes[span.job][-1][1] != len(span.devices):
            sizes[span.job].append((span.start_s - now_s, len(span.devices)))
    return {
        "policy": result.policy,
        "devices": state.cluster.num_devices,
        "mean_jct_s": result.mean_jct_s,
        "makespan_s": max(job.finished_s for job in result.jobs) - now_s,
        "jobs": [
            {
                "id": job.name,
                "name": state.jobs[job.name].name or job.name,
                "start_s": max(job.started_s - now_s, 0.0),
                "end_s": job.finished_s - now_s,
                "workers": [list(change) for change in sizes.get(job.name, [])],
            }
            for job in result.jobs
        ],
    }
