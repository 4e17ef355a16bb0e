"""What the controller knows about its queue, for a forecast (``weft whatif``)."""

from __future__ import annotations

import statistics

from weft.control.draft import altered
from weft.control.job_table import JobTable
from weft.control.state import State
from weft.core.speed import StepTime
from weft.daemon.knowledge import Knowledge
from weft.daemon.scheduling import Scheduler
from weft.sim.queue_forecast import KnownJob, Queue


def queue_now(state: State, scheduler: Scheduler, knowledge: Knowledge, now_s: float) -> Queue:
    """Active jobs with their progress, speeds, and remaining work; without their commands, which are not needed."""
    active = [altered(job, {"launch": None}) for job in state.jobs.active.values()]
    beliefs = scheduler.beliefs(active, state, knowledge, now_s)
    known = {}
    for job in active:
        about = knowledge.of(job.id)
        measured: dict[int, StepTime] = {sum(shape): about.median(shape) for shape in about.samples}
        belief = beliefs[job.id]
        known[job.id] = KnownJob(
            measured,
            belief.curve.times,
            belief.remaining_steps,
            belief.is_length_known,
            is_fixed=bool(job.devices) and not about.can_resume,
        )
    options = scheduler.options
    return Queue(
        State(state.cluster, JobTable(active), state.now_s, state.num_events),
        max(now_s, state.now_s),
        known,
        scheduler.policy.name,
        options.hold_s,
        options.review_s,
        statistics.fmean([knowledge.restarts.estimate_s(job.id) for job in active]) if active else 0.0,
        options.handover_s if options.crossover else None,
        dict(options.quotas),
        options.usual_s,
    )
