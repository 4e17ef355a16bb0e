"""A simulated job's true progress: its speed on its devices, and how far it has come.

Its life cycle is in ``weft.control``; this module knows only devices and partners.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from weft.core.cluster import Shape
from weft.perf.crossover import filler_speed, turns_speed
from weft.sim.device_kinds import on_kind
from weft.sim.workload import Profile, TrueJob


@dataclass(slots=True, eq=False)
class JobRun:
    """The work of one job, attempt after attempt."""

    job: TrueJob
    index: int
    remaining_steps: float
    updated_s: float
    """Progress is counted up to here."""
    attempt: int = 0
    """The last attempt that was started; it has ended if there are no devices."""
    steps_per_s: float = 0.0
    resume_s: float = 0.0
    """No progress before this time: it is starting."""
    devices: tuple[int, ...] = ()
    shape: Shape = ()
    kind: str = ""
    """The device kind of its devices; empty in a cluster of one kind."""
    partner: JobRun | None = None
    fills: bool = False
    """Whether it runs only in the gaps of its partner."""
    billed_device_s: float = 0.0
    """Devices held x time; a shared device counts half."""
    tried: set[int] = field(default_factory=set)
    """Sizes at which its speed was measured (kept only where that tells the policy something)."""
    tried_on: dict[str, set[int]] = field(default_factory=dict)
    """The same by device kind, where there are several; ``tried`` is then the one of its present kind."""
    stage: int = 0
    """Of the stages of its training, if it has any."""
    version: int = 0
    """Counts changes of speed, to tell predictions made before a change from those made after it."""

    @property
    def id(self) -> str:
        return self.job.spec.id

    @property
    def profile(self) -> Profile:
        """Its present behavior, on whatever kind of devices."""
        job = self.job
        return job.stages[self.stage].profile if job.stages else job.profile

    @property
    def profile_here(self) -> Profile:
        """Its present behavior on the devices it has."""
        return on_kind(self.profile, self.kind) if self.kind else self.profile

    @property
    def stage_left_steps(self) -> float:
        """What will be left when its behavior changes, or at its end."""
        return self.job.stages[self.stage].left_steps if self.job.stages else 0.0


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
    """Set the speed from the job's devices and partner.  Call it after every change of these."""
    own = run.profile_here.step_time(run.shape)
    partner = run.partner
    if partner is None or partner.resume_s > now_s >= run.resume_s:
        run.steps_per_s = 1 / own.step_s  # a partner that is still starting takes no turns
    elif run.fills:
        primary = partner.profile_here.step_time(run.shape)
        run.steps_per_s = filler_speed(primary, own, handover_s).second_steps_per_s
    elif partner.fills:
        run.steps_per_s = 1 / own.step_s
    else:
        other = partner.profile_here.step_time(run.shape)
        run.steps_per_s = turns_speed(own, other, handover_s).first_steps_per_s
    run.version += 1


def stage_end_s(run: JobRun) -> float:
    """When the job will finish its stage if nothing changes; a filler whose primary leaves no gaps never does."""
    if run.steps_per_s <= 0:
        return float("inf")
    start_s = run.resume_s if run.resume_s > run.updated_s else run.updated_s
    return start_s + max(0.0, run.remaining_steps - run.stage_left_steps) / run.steps_per_s
