"""What a restarted controller must do again, in case the last one was killed between recording and doing it.

Engines are idempotent (core/engine.py, [Note: exactly once]), so repeating an action does no harm.
"""

from __future__ import annotations

from collections.abc import Collection

from weft.control.state import JobState, State
from weft.core.actions import Action, Decide, KillWorkers, StartWorkers, StopWorkers
from weft.core.events import Fate, WorkersExited


def actions_outstanding(state: State) -> tuple[Action, ...]:
    """Every action whose outcome is not known yet, in order of submission; then a decision, if any job is active."""
    actions: list[Action] = []
    for job in state.jobs.active.values():
        if job.state is JobState.RUNNING:
            actions.append(StartWorkers(job.id, job.attempt, job.devices))
        elif job.state is JobState.STOPPING:
            actions.append((KillWorkers if job.is_killed else StopWorkers)(job.id, job.attempt))
    if state.jobs.active:
        actions.append(Decide())
    return tuple(actions)


def attempts_never_begun(state: State, known: Collection[tuple[str, int]], at_s: float) -> tuple[WorkersExited, ...]:
    """The ends of attempts that should stop but that the engine does not know, so it would never report them.

    This happens if an attempt was ordered and stopped, and the controller was killed before it did either.
    """
    return tuple(
        WorkersExited(at_s, job.id, job.attempt, Fate.STOPPED, reason="stopped before it was started")
        for job in state.jobs.active.values()
        if job.state is JobState.STOPPING and (job.id, job.attempt) not in known
    )
