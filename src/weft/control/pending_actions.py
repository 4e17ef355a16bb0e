"""What a controller that comes back must ask for again: it was killed between writing down and doing.

Engines are idempotent (core/engine.py, [Note: exactly once]), so asking for what was done already does no harm.
"""

from __future__ import annotations

from collections.abc import Collection

from weft.control.state import JobState, State
from weft.core.actions import Action, Decide, KillWorkers, StartWorkers, StopWorkers
from weft.core.events import Fate, WorkersExited


def actions_outstanding(state: State) -> tuple[Action, ...]:
    """Every action whose outcome is not known yet, in order of submission; then a decision, if there is anybody."""
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
    """Attempts that are to be stopped although the engine has never heard of them: nobody would ever tell their end.

    That is so when an attempt was ordered and called off, and the controller was killed before it passed on either.
    """
    return tuple(
        WorkersExited(at_s, job.id, job.attempt, Fate.STOPPED, reason="called off before it began")
        for job in state.jobs.active.values()
        if job.state is JobState.STOPPING and (job.id, job.attempt) not in known
    )
