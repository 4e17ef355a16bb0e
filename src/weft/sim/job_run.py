"""What a job really does on virtual time: how fast it is where it sits, and how far it has come.

Its life cycle is the controller's business (``weft.control``); functions here know of devices and neighbours only.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from weft.core.cluster import Shape
from weft.perf.crossover import filler_speed, turns_speed
from weft.sim.workload import TrueJob


@dataclass(slots=True, eq=False)
class JobRun:
    """The work of one job, attempt after attempt."""

    job: TrueJob
    index: int
    remaining_steps: float
    updated_s: float
    """Progress is counted up to here."""
    attempt: int = 0
    """The last attempt that was started; it is over when there are no devices."""
    steps_per_s: float = 0.0
    resume_s: float = 0.0
    """No progress before: it is being started."""
    devices: tuple[int, ...] = ()
    shape: Shape = ()
    partner: JobRun | None = None
    fills: bool = False
    """Whether it only runs in the gaps of its partner."""
    billed_device_s: float = 0.0
    """Devices held x time, a shared device counted half."""
    tried: set[int] = field(default_factory=set)
    """Sizes at which its speed was measured (kept only where that tells the policy something)."""
    version: int = 0
    """Counts changes of speed, so that predictions made before one can be told from those after."""

    @property
    def id(self) -> str:
        return self.job.spec.id


def advance(run: JobRun, now_s: float) -> None:
    """Count progress and service up to ``now_s``; speed must have been constant since the last call."""
    elapsed = now_s - run.updated_s
    if run.devices and elapsed > 0:
        held = len(run.devices) * elapsed
        run.billed_device_s += held / 2 if run.partner else held
        running = now_s - run.resume_s
        if running > 0:
            run.remaining_steps -= run.steps_per_s * (elapsed if elapsed < running else running)
    run.updated_s = now_s


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
