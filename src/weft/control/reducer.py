"""``(state, event) -> (state, actions)``: the only place where a job's state changes.  No I/O, no clock.

Every event is valid in any order, even if it changes nothing: it may be about an attempt that has ended or an unknown
job, or repeat what is already known.  The same events give the same state, so only the journal must survive.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import chain
from typing import Any, Final

from weft.control.draft import Draft, because
from weft.control.state import Job, JobState, State
from weft.core.actions import Action, KillWorkers, StopWorkers
from weft.core.cluster import Cluster
from weft.core.events import (
    CancelRequested,
    ClockSetBack,
    DevicesAssigned,
    Event,
    Fate,
    JobChanged,
    JobsPurged,
    JobSubmitted,
    NodeDrained,
    NodeFailed,
    NodeJoined,
    NodeRepaired,
    NodeResumed,
    ProgressReported,
    WorkersExited,
    WorkersStarted,
)
from weft.core.plural import plural
from weft.core.reason import Cancelled, Completed, Failed, NodeLost, Queued, Restarting
from weft.core.step_report import Progress
from weft.errors import UsageError

MAX_LOSSES: Final = 5
"""After this many lost attempts in a row without progress, the job fails."""


def reduce(state: State, event: Event) -> tuple[State, tuple[Action, ...]]:
    """The state after the event, and what to do about it."""
    draft = Draft(state, event.at_s)
    _HANDLERS[type(event)](draft, event)
    return draft.state(), tuple(draft.actions)


def _job_submitted(draft: Draft, event: JobSubmitted) -> None:
    if draft.knows(event.spec.id):
        return  # ids are unique: this is the same submission again
    spec = event.spec
    if spec.submitted_s != draft.now_s:  # the clock was set back since the last event
        spec = replace(spec, submitted_s=draft.now_s)
    draft.add(
        Job(
            spec,
            draft.next_number,
            event.name,
            event.launch,
            progress=Progress(0, event.total_steps),
            changed_s=draft.now_s,
            **because(Queued()),
        )
    )
    draft.decide()


def _cancel_requested(draft: Draft, event: CancelRequested) -> None:
    job = draft.active.get(event.job_id)
    if job is None:
        return
    if job.state is JobState.PENDING:
        draft.finish(job, JobState.CANCELLED, because(Cancelled(event.reason)))
    elif not job.is_cancelled:
        job = draft.unwant(job)
        job = draft.change(job, {"is_cancelled": True, **because(Cancelled(event.reason))})
        if job.state is JobState.RUNNING:
            _stop(draft, job, {})
    elif not job.is_killed:
        _kill(draft, job, because(Cancelled(event.reason)))


def _job_changed(draft: Draft, event: JobChanged) -> None:
    """The next decision takes it into account; a job with too many or too few workers is stopped immediately."""
    job = draft.active.get(event.job_id)
    if job is None or job.is_cancelled:
        return
    try:
        spec = job.spec.changed(event.weight, event.priority, event.min_workers, event.max_workers)
    except UsageError:
        return  # it was valid for the job as it was at the time of the request
    job = draft.change(job, {"spec": spec})
    if job.wanted and not spec.min_workers <= len(job.wanted) <= spec.max_workers:
        job = draft.unwant(job)
        if job.state is JobState.RUNNING:
            _stop(draft, job, {})
    draft.decide()


def _devices_assigned(draft: Draft, event: DevicesAssigned) -> None:
    """Each job moves when it can; a decision that does not fit the cluster (anymore) is ignored as a whole."""
    active = draft.active
    wanted: dict[str, tuple[int, ...]] = {}
    for job_id, devices in event.devices.items():
        job = active.get(job_id)
        if not devices or job is None or job.is_cancelled:
            continue
        if not job.spec.min_workers <= len(devices) <= job.spec.max_workers:
            return
        wanted[job_id] = devices
    partners = {job_id: other for job_id, other in event.partners.items() if job_id in wanted and other in wanted}
    if not _fits(draft.cluster, active, wanted, partners):
        return
    fillers, reasons, codes = event.fillers, event.reasons, event.reason_codes
    for job_id, job in active.items():  # the old jobs: the draft writes to its own copy
        devices, partner = wanted.get(job_id, ()), partners.get(job_id)
        fills = partner is not None and job_id in fillers
        reason, code = job.reason, job.reason_code
        if reasons and job_id in reasons:
            reason, code = reasons[job_id], codes.get(job_id, "")
        same = devices == job.wanted and partner == job.wanted_partner and fills == job.wanted_fills
        if (same and reason == job.reason) or job.is_cancelled:
            continue
        changes: dict[str, Any] = {
            "wanted": devices,
            "wanted_partner": partner,
            "wanted_fills": fills,
            "reason": reason,
            "reason_code": code,
        }
        if job.state is JobState.RUNNING and devices != job.devices:
            _stop(draft, job, changes)
            continue
        if job.partner is not None and job.partner == partner and job.state is JobState.RUNNING:
            changes["fills"] = fills  # another role on the same devices needs no restart
        draft.change(job, changes)
    draft.start_ready()


def _fits(
    cluster: Cluster, active: Mapping[str, Job], wanted: Mapping[str, tuple[int, ...]], partners: Mapping[str, str]
) -> bool:
    """Whether every device exists, can be given, and is promised to one job or one pair.

    Devices of a drained node can only be kept by the job that has them.
    """
    once: Mapping[str, tuple[int, ...]] = wanted
    if partners:
        for job_id, other in partners.items():
            if other == job_id or partners.get(other) != job_id or wanted[other] != wanted[job_id]:
                return False
        once = {job_id: devices for job_id, devices in wanted.items() if partners.get(job_id, job_id) >= job_id}
    promised = list(chain.from_iterable(once.values()))
    if not promised:
        return True
    if len(set(promised)) != len(promised) or min(promised) < 0 or max(promised) >= sum(cluster.devices_by_node):
        return False
    failed, closed = cluster.failed_nodes, cluster.closed_nodes
    if not closed:
        return True
    if any(cluster.node_of(device) in failed for device in promised):
        return False
    moved = [devices for job_id, devices in wanted.items() if devices != active[job_id].wanted]
    return all(cluster.node_of(device) not in closed for devices in moved for device in devices)


def _workers_started(draft: Draft, event: WorkersStarted) -> None:
    job = _current(draft, event.job_id, event.attempt)
    if job is not None and job.workers_since_s is None:
        draft.change(job, {"workers_since_s": draft.now_s})


def _progress_reported(draft: Draft, event: ProgressReported) -> None:
    job = _current(draft, event.job_id, event.attempt)
    if job is None:
        return
    num_losses = 0 if event.progress.step > job.lost_at_step else job.num_losses
    draft.change(job, {"progress": event.progress.after(job.progress), "num_losses": num_losses})


def _workers_exited(draft: Draft, event: WorkersExited) -> None:
    job = _current(draft, event.job_id, event.attempt)
    if job is None:
        return
    fate = event.fate
    if fate is Fate.COMPLETED:
        draft.finish(job, JobState.COMPLETED, because(Completed(event.reason)), event.exit_code)
    elif job.is_cancelled:
        draft.finish(job, JobState.CANCELLED, {}, event.exit_code)
    elif job.is_killed or (fate is Fate.STOPPED and job.state is JobState.STOPPING):
        # If its node failed, whatever the job reports is the node's fault.
        draft.release(job, JobState.PENDING, {"exit_code": event.exit_code})
    elif fate is Fate.FAILED:
        _failed(draft, job, event)
    else:
        _lost(draft, job, event)
    draft.start_ready()


def _failed(draft: Draft, job: Job, event: WorkersExited) -> None:
    num_failures = job.num_failures + 1
    may_restart = job.launch.max_restarts if job.launch else 0
    reason = event.reason or f"exit code {event.exit_code}"
    job = draft.change(job, {"num_failures": num_failures})
    if num_failures > may_restart:
        restarts = f", restarted {plural(may_restart, 'time')}" if may_restart else ""
        draft.finish(job, JobState.FAILED, because(Failed(f"{reason}{restarts}")), event.exit_code)
    else:
        again = Restarting(f"failed ({reason}), restart {num_failures} of {may_restart}")
        _back_in_queue(draft, job, again, event.exit_code)


def _lost(draft: Draft, job: Job, event: WorkersExited) -> None:
    """Its workers ended although the controller did not stop them and the script did not fail."""
    num_losses = job.num_losses + 1
    what = event.reason or ("stopped from outside" if event.fate is Fate.STOPPED else "workers vanished")
    job = draft.change(job, {"num_losses": num_losses, "lost_at_step": max(job.lost_at_step, job.progress.step)})
    if num_losses >= MAX_LOSSES:
        reason = f"{what}, {num_losses} times in a row without progress beyond step {job.lost_at_step}"
        draft.finish(job, JobState.FAILED, because(Failed(reason)), event.exit_code)
    else:
        _back_in_queue(draft, job, Restarting(f"{what}, will be restarted"), event.exit_code)


def _back_in_queue(draft: Draft, job: Job, reason: Restarting, exit_code: int) -> None:
    """A job that is moving keeps its new devices; any other gets a new decision, which may place it elsewhere."""
    if job.state is JobState.RUNNING:
        job = draft.unwant(job)
        draft.decide()
    draft.release(job, JobState.PENDING, {"exit_code": exit_code, **because(reason)})


def _node_failed(draft: Draft, event: NodeFailed) -> None:
    cluster, node = draft.cluster, event.node
    if not 0 <= node < cluster.num_nodes or node in cluster.failed_nodes:
        return
    draft.cluster = replace(
        cluster.without(cluster.failed_nodes | {node}), leaving_nodes=cluster.leaving_nodes - {node}
    )
    failed = cluster.devices_of(node)
    lost = because(NodeLost(cluster.node_names[node]))
    for job_id in list(draft.active):
        job = draft.active[job_id]
        if any(device in failed for device in job.wanted):
            job = draft.unwant(job)
        if not job.is_killed and any(device in failed for device in job.devices):
            _kill(draft, job, {} if job.is_cancelled else lost)
    draft.decide()


def _node_repaired(draft: Draft, event: NodeRepaired) -> None:
    failed = draft.cluster.failed_nodes
    if event.node in failed:
        draft.cluster = draft.cluster.without(failed - {event.node})
        draft.decide()


def _node_joined(draft: Draft, event: NodeJoined) -> None:
    cluster = draft.cluster
    if event.name not in cluster.node_names and event.num_devices >= 1:
        draft.cluster = cluster.joined_by(event.name, event.num_devices, event.kind)
        draft.decide()
    elif event.name in cluster.node_names and (known := cluster.with_kind(event.name, event.kind)) != cluster:
        draft.cluster = known
        draft.decide()


def _node_drained(draft: Draft, event: NodeDrained) -> None:
    """Jobs there keep running until the next decision moves them; those about to start there do not."""
    cluster, node = draft.cluster, event.node
    before = cluster.leaving_nodes if event.is_notice else cluster.drained_nodes
    if not 0 <= node < cluster.num_nodes or node in before:
        return
    draft.cluster = _closed(cluster, before | {node}, is_notice=event.is_notice)
    closed = cluster.devices_of(node)
    for job_id in list(draft.active):
        job = draft.active[job_id]
        if job.wanted != job.devices and any(device in closed for device in job.wanted):
            draft.unwant(job)
    draft.decide()


def _node_resumed(draft: Draft, event: NodeResumed) -> None:
    cluster = draft.cluster
    before = cluster.leaving_nodes if event.is_notice else cluster.drained_nodes
    if event.node in before:
        draft.cluster = _closed(cluster, before - {event.node}, is_notice=event.is_notice)
        draft.decide()


def _closed(cluster: Cluster, nodes: frozenset[int], *, is_notice: bool) -> Cluster:
    return replace(cluster, leaving_nodes=nodes) if is_notice else replace(cluster, drained_nodes=nodes)


def _current(draft: Draft, job_id: str, attempt: int) -> Job | None:
    """The job, if this is its current attempt; events of any other are late."""
    job = draft.active.get(job_id)
    return job if job is not None and job.attempt == attempt and job.devices else None


def _stop(draft: Draft, job: Job, changes: dict[str, Any]) -> None:
    draft.move(job, JobState.STOPPING, changes)
    draft.actions.append(StopWorkers(job.id, job.attempt))


def _kill(draft: Draft, job: Job, reason: dict[str, Any]) -> None:
    if job.state is JobState.RUNNING:
        job = draft.move(job, JobState.STOPPING, {})
    draft.change(job, {"is_killed": True, **reason})
    draft.actions.append(KillWorkers(job.id, job.attempt))


_HANDLERS: Final[Mapping[type[Event], Callable[[Draft, Any], None]]] = {
    JobSubmitted: _job_submitted,
    CancelRequested: _cancel_requested,
    JobChanged: _job_changed,
    DevicesAssigned: _devices_assigned,
    WorkersStarted: _workers_started,
    ProgressReported: _progress_reported,
    WorkersExited: _workers_exited,
    NodeFailed: _node_failed,
    NodeRepaired: _node_repaired,
    NodeJoined: _node_joined,
    NodeDrained: _node_drained,
    NodeResumed: _node_resumed,
    JobsPurged: lambda draft, event: draft.purge(event.job_ids),
    ClockSetBack: lambda draft, event: draft.set_clock_back(event.at_s),
}
