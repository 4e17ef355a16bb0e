"""The controller's answers as JSON.  Whatever a job reports, the result is valid JSON."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Mapping, Sequence
from heapq import nlargest

from weft.control.queue_order import QueuePlace
from weft.control.state import Job, JobState
from weft.core.status_rows import DecisionRow, HealthRow, JobDetail, JobRow, NodeRow, SentenceRow, TimelineRow
from weft.daemon.api.sessions import Permission
from weft.daemon.attempt_bars import AttemptBar
from weft.daemon.contract import Decision, NodeStatus, NodeView, Sentence
from weft.version import __version__


def job_row(job: Job, queue: Mapping[str, QueuePlace]) -> JobRow:
    """A row of ``weft status --json``."""
    waited_s, ran_s = times_s(job, time.time())
    position, expected_start_s = shown_place(queue.get(job.id) if job.state is JobState.PENDING else None)
    return {
        "id": job.id,
        "name": job.name or job.id,
        "state": job.state.value,
        "workers": len(job.devices),
        "min_workers": job.spec.min_workers,
        "max_workers": job.spec.max_workers,
        "step": job.progress.step,
        "total_steps": job.progress.total_steps,
        "attempt": job.attempt,
        "restarts": job.num_restarts,
        "submitted_s": job.submitted_s,
        "started_s": job.started_s,
        "finished_s": job.finished_s,
        "waited_s": waited_s,
        "ran_s": ran_s,
        "queue_position": position,
        "expected_start_s": expected_start_s,
        "reason": job.reason,
        "reason_code": job.reason_code,
    }


def job_detail(job: Job, queue: Mapping[str, QueuePlace]) -> JobDetail:
    """Everything about a job, except its environment, which may contain passwords."""
    return {
        **job_row(job, queue),
        "command": list(job.launch.argv) if job.launch else [],
        "cwd": job.launch.cwd if job.launch else "",
        "user": job.spec.user,
        "weight": job.spec.weight,
        "priority": job.spec.priority,
        "devices": list(job.devices),
        "partner": job.partner,
        "step_s": _number(job.progress.step_s) or 0.0,
        "exposed_s": _number(job.progress.exposed_s) or 0.0,
        "loss": _number(job.progress.loss),
        "exit_code": job.exit_code,
    }


def most_interesting(jobs: Sequence[Job], limit: int) -> list[Job]:
    """Running ones, then waiting ones, both in order of submission, then those that finished last."""
    active = [job for job in jobs if not job.state.is_final]
    shown = sorted(active, key=lambda job: not job.devices)[:limit]
    if len(shown) < limit:
        over = [job for job in jobs if job.state.is_final]
        shown += nlargest(limit - len(shown), over, key=lambda job: job.finished_s or 0.0)
    return shown


def sentence_row(sentence: Sentence) -> SentenceRow:
    return {"time_s": sentence.at_s, "sentence": sentence.text}


def decision_row(decision: Decision) -> DecisionRow:
    return {
        "time_s": decision.at_s,
        "devices": {job_id: list(devices) for job_id, devices in decision.devices.items()},
        "reasons": dict(decision.reasons),
    }


def health_row(policy: str, warnings: list[str], permission: Permission) -> HealthRow:
    return {
        "status": "ok",
        "version": __version__,
        "policy": policy,
        "pid": os.getpid(),
        "warnings": warnings,
        "permission": permission.value,
    }


def node_row(node: NodeView) -> NodeRow:
    return {
        "node": node.node,
        "name": node.name,
        "up": node.status is not NodeStatus.LOST,
        "status": node.status.value,
        "kind": node.kind,
        "devices": [
            {"device": device, "name": f"{node.name}/{index}", "jobs": list(jobs)}
            for index, (device, jobs) in enumerate(sorted(node.devices.items()))
        ],
    }


def shown_place(place: QueuePlace | None) -> tuple[int | None, float | None]:
    """Position and expected start.  A guessed start changes with every decision and is not shown."""
    if place is None:
        return None, None
    return place.position, place.expected_start_s if place.is_certain else None


def times_s(job: Job, now_s: float) -> tuple[float, float]:
    """How long the job has waited for devices, and how long it has held some, until now or until it finished."""
    ran_s = job.ran_s + (max(now_s - job.changed_s, 0.0) if job.devices else 0.0)
    if not ran_s and job.started_s is not None and job.finished_s is not None:
        ran_s = job.finished_s - job.started_s  # an older version of weft counted no times
    end_s = now_s if job.finished_s is None else job.finished_s
    return max(end_s - job.submitted_s - ran_s, 0.0), ran_s


def timeline_row(
    bars: Sequence[AttemptBar], jobs: Mapping[str, Job], nodes: Sequence[NodeView], since_s: float, until_s: float
) -> TimelineRow:
    names = {device["device"]: device["name"] for node in nodes for device in node_row(node)["devices"]}
    return {
        "since_s": since_s,
        "until_s": until_s,
        "bars": [
            {
                "job": bar.job_id,
                "name": jobs[bar.job_id].name or bar.job_id,
                "attempt": bar.attempt,
                "start_s": bar.start_s,
                "end_s": bar.end_s,
                "devices": [names.get(device, str(device)) for device in bar.devices],
                "workers": len(bar.devices),
            }
            for bar in bars
            if bar.job_id in jobs
        ],
    }


def _number(value: float | None) -> float | None:
    """A diverged loss is NaN, which JSON cannot represent."""
    return value if value is not None and math.isfinite(value) else None
