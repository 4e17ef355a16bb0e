"""What must hold between the states before and after one event."""

from __future__ import annotations

from weft.control.invariants import InvariantBroken, _expect
from weft.control.state import Job, JobState, State
from weft.control.transitions import LEGAL


def check_step(before: State, after: State) -> None:
    """Raise unless one ordinary event (not one that purges jobs or sets the clock) can lead to ``after``."""
    _expect(after.num_events == before.num_events + 1, f"one event more than {before.num_events}: {after.num_events}")
    _expect(after.now_s >= before.now_s, f"time not to run backwards from {before.now_s} to {after.now_s}")
    _expect(len(after.jobs) - len(before.jobs) in (0, 1), "at most one job more, and none less")
    for job_id, old in before.jobs.items():
        new = after.jobs.get(job_id)
        if new is None:
            raise InvariantBroken(f"expected job {job_id} still to be known")
        _expect(new is old or not old.state.is_final, f"job {job_id}, which is over, to stay as it was")
        _expect(_reachable(old, new), f"job {job_id} not to go from {old.state.value} to {new.state.value}")
        _expect(new.attempt - old.attempt in (0, 1), f"job {job_id} started at most once, not {new.attempt} times")
        counts = ("num_restarts", "num_failures", "attained_device_s", "is_cancelled", "lost_at_step")
        for name in counts:
            _expect(getattr(new, name) >= getattr(old, name), f"{name} of job {job_id} not to shrink")


def _reachable(old: Job, new: Job) -> bool:
    """In one event a job makes one step of the table, or passes through PENDING to be started elsewhere."""
    if new.attempt > old.attempt:
        return new.state is JobState.RUNNING and (old.state is JobState.PENDING or JobState.PENDING in LEGAL[old.state])
    return new.state is old.state or new.state in LEGAL[old.state]
