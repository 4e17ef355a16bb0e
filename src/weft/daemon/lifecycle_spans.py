"""A job's life as spans, for OpenTelemetry: job -> (queued, attempt -> (starting, running, stopping)).

Pure: compares the states before and after an event.  A span is made when it ends; when it began is part of the job's
state, and its key follows from the job and the attempt, so a restarted controller continues the same trace.  Only the
time of a stop request is remembered here: an attempt that was asked to stop before the controller restarted has no
``stopping``, and its ``running`` lasts until its end.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from weft.control.state import Job, JobState, State

JOB = "job"
Value = str | int | float | tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LifeSpan:
    """One span that has ended; times are seconds of the controller's clock."""

    job_id: str
    key: str
    """Unique among the spans of its job."""
    parent: str | None
    name: str
    start_s: float
    end_s: float
    attributes: Mapping[str, Value] = field(default_factory=dict)
    error: str | None = None
    """What went wrong, if something did."""


class LifecycleSpans:
    """Gets the states around each event, in order."""

    def __init__(self) -> None:
        self._stop_asked_s: dict[str, tuple[int, float]] = {}
        """Attempt and time of the last request to stop, by job."""

    def ended(self, before: State, after: State) -> Iterator[LifeSpan]:
        """The spans that ended with the event between these states; of each job, children come first."""
        if before.jobs.active is after.jobs.active:
            return
        for job_id, was in before.jobs.active.items():
            now = after.jobs.get(job_id)
            if now is not None and now is not was:
                yield from self._of(was, now, after)

    def _of(self, was: Job, now: Job, after: State) -> Iterator[LifeSpan]:
        at_s = after.now_s
        if was.state is JobState.RUNNING and now.state is JobState.STOPPING:
            self._stop_asked_s[was.id] = was.attempt, at_s
        if not was.devices and (now.devices or now.state.is_final):
            yield _span(was, f"queued before attempt {was.attempt + 1}", JOB, "queued", was.changed_s, at_s)
        if was.devices and (not now.devices or now.attempt != was.attempt):
            yield from self._attempt(was, now, after)
        if now.state.is_final:
            self._stop_asked_s.pop(was.id, None)
            yield _whole(now, at_s)

    def _attempt(self, was: Job, now: Job, after: State) -> Iterator[LifeSpan]:
        key, at_s = f"attempt {was.attempt}", after.now_s
        started_s = at_s if was.workers_since_s is None else was.workers_since_s
        attempt, asked_s = self._stop_asked_s.get(was.id, (0, at_s))
        stop_s = max(asked_s, started_s) if attempt == was.attempt else at_s
        yield _span(was, f"{key} starting", key, "starting", was.changed_s, started_s)
        if was.workers_since_s is not None:
            yield _span(was, f"{key} running", key, "running", started_s, stop_s)
        if stop_s < at_s:
            yield _span(was, f"{key} stopping", key, "stopping", stop_s, at_s)
        attributes: dict[str, Value] = {
            "weft.attempt": was.attempt,
            "weft.workers": len(was.devices),
            "weft.devices": tuple(map(after.cluster.device_name, was.devices)),
            "weft.step": now.progress.step,
        }
        if was.partner is not None:
            attributes["weft.shared_with"] = was.partner
        has_failed = now.num_failures > was.num_failures or now.num_losses > was.num_losses
        yield _span(was, key, JOB, "attempt", was.changed_s, at_s, attributes, now.reason if has_failed else None)


def _whole(job: Job, at_s: float) -> LifeSpan:
    attributes: dict[str, Value] = {
        "weft.state": job.state.value,
        "weft.user": job.spec.user,
        "weft.min_workers": job.spec.min_workers,
        "weft.max_workers": job.spec.max_workers,
        "weft.weight": job.spec.weight,
        "weft.priority": job.spec.priority,
        "weft.restarts": job.num_restarts,
        "weft.step": job.progress.step,
        "weft.reason": job.reason,
    }
    if job.exit_code is not None:
        attributes["weft.exit_code"] = job.exit_code
    error = job.reason if job.state is JobState.FAILED else None
    return _span(job, JOB, None, JOB, job.submitted_s, at_s, attributes, error)


def _span(
    job: Job,
    key: str,
    parent: str | None,
    name: str,
    start_s: float,
    end_s: float,
    attributes: Mapping[str, Value] | None = None,
    error: str | None = None,
) -> LifeSpan:
    who: dict[str, Value] = {"weft.job.id": job.id, "weft.job.name": job.name or job.id}
    # A clock that was set back must not make a span that ends before it begins.
    end_s = max(end_s, start_s)
    return LifeSpan(job.id, key, parent, name, start_s, end_s, {**who, **(attributes or {})}, error)
