"""The life of one job on virtual time: waiting, starting, running, done.  All its transitions are here.

    waiting --assign--> starting --(restart_s later)--> running --finish--> done
       ^                   |  ^                            |  |
       |------release------|  |-----------assign-----------|  |
       |------------------------release-----------------------|

Functions change the run they are given and nothing else; they know neither policy nor queue of events.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from weft.core.cluster import Shape
from weft.perf.crossover import filler_speed, turns_speed
from weft.sim.workload import TrueJob


@dataclass(slots=True, eq=False)
class JobRun:
    """A job between submission and end."""

    job: TrueJob
    index: int
    remaining_steps: float
    updated_s: float
    """Progress is counted up to here."""
    changed_s: float
    """When it got its present devices, or lost its last ones, or was submitted."""
    steps_per_s: float = 0.0
    resume_s: float = 0.0
    """No progress before: it is being started."""
    devices: tuple[int, ...] = ()
    shape: Shape = ()
    partner: JobRun | None = None
    fills: bool = False
    """Whether it only runs in the gaps of its partner."""
    started_s: float = -1.0
    finished_s: float = -1.0
    num_restarts: int = 0
    attained_device_s: float = 0.0
    billed_device_s: float = 0.0
    """Like ``attained_device_s``, a shared device counted half."""
    tried: set[int] = field(default_factory=set)
    """Sizes at which its speed was measured (kept only while exploring)."""
    version: int = 0
    """Counts changes of speed, so that predictions made before one can be told from those after."""

    @property
    def name(self) -> str:
        return self.job.spec.name


def submit(job: TrueJob, index: int) -> JobRun:
    """A job enters the queue."""
    at = job.spec.submitted_s
    return JobRun(job, index, job.total_steps, updated_s=at, changed_s=at)


def advance(run: JobRun, now_s: float) -> None:
    """Count progress and service up to ``now_s``; speed must have been constant since the last call."""
    elapsed = now_s - run.updated_s
    if run.devices and elapsed > 0:
        held = len(run.devices) * elapsed
        run.attained_device_s += held
        run.billed_device_s += held / 2 if run.partner else held
        running = now_s - run.resume_s
        if running > 0:
            run.remaining_steps -= run.steps_per_s * (elapsed if elapsed < running else running)
    run.updated_s = now_s


def assign(run: JobRun, now_s: float, devices: tuple[int, ...], shape: Shape, restart_s: float) -> None:
    """Put the job on other devices than it has; it resumes ``restart_s`` later."""
    if run.started_s < 0:
        run.started_s = now_s
    else:
        run.num_restarts += 1
    run.devices, run.shape = devices, shape
    run.changed_s = now_s
    run.resume_s = now_s + restart_s


def release(run: JobRun, now_s: float) -> None:
    """Take all devices away; progress stays."""
    run.devices, run.shape, run.partner, run.fills = (), (), None, False
    run.changed_s = now_s
    run.steps_per_s = 0.0
    run.version += 1


def finish(run: JobRun, now_s: float) -> None:
    """The last step is made."""
    run.remaining_steps = 0.0
    run.finished_s = now_s
    release(run, now_s)


def rate(run: JobRun, now_s: float, handover_s: float) -> None:
    """Set the speed from where the job sits and who shares its devices.  Call it after every such change."""
    own = run.job.profile.step_time(run.shape)
    partner = run.partner
    if partner is None or partner.resume_s > now_s >= run.resume_s:
        run.steps_per_s = 1 / own.step_s  # a partner that is still being started takes no turn
    elif run.fills:
        primary = partner.job.profile.step_time(run.shape)
        run.steps_per_s = filler_speed(primary, own, handover_s).second_steps_per_s
    elif partner.fills:
        run.steps_per_s = 1 / own.step_s
    else:
        other = partner.job.profile.step_time(run.shape)
        run.steps_per_s = turns_speed(own, other, handover_s).first_steps_per_s
    run.version += 1


def finish_time_s(run: JobRun) -> float:
    """When the job will be done if nothing changes; a filler whose primary leaves no gap never is."""
    if run.steps_per_s <= 0:
        return float("inf")
    start_s = run.resume_s if run.resume_s > run.updated_s else run.updated_s
    return start_s + max(0.0, run.remaining_steps) / run.steps_per_s
