"""What the controller has learned about each job: how fast it is, how much is left, what a restart costs it.

Everything here is an estimate.  It is saved now and then; losing it costs a few measurements and nothing else.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from weft.control.state import Job
from weft.core.cluster import Cluster, Shape
from weft.core.speed import SpeedCurve, StepTime
from weft.daemon.channel import Report
from weft.perf.fitting import SpeedSample, fit_speed
from weft.perf.restart import RestartCost

NOTEWORTHY = 0.2
"""A step time that has moved by more than this share is worth a decision."""
_REFIT = 0.05
_KEPT_SAMPLES = 31
_KEPT_LOSSES = 200
_MIN_LOSSES = 12
_REFIT_LOSS_GROWTH = 1.25
_UNKNOWN_STEP_S = 1.0
_SLOW_STEP_S = 1.0


@dataclass
class _Pending:
    """A restart under way."""

    stop_s: float | None = None
    stopping_s: float = 0.0
    start_s: float | None = None


@dataclass
class JobKnowledge:
    """One job."""

    samples: dict[Shape, deque[tuple[float, float]]] = field(default_factory=dict)
    losses: deque[tuple[int, float]] = field(default_factory=lambda: deque(maxlen=_KEPT_LOSSES))
    restart: RestartCost | None = None
    can_resume: bool = True
    attempt: int = 0
    """The attempt that has last reported."""
    num_reports: int = 0
    """Of that attempt's first worker."""
    newest: Report | None = None
    pending: _Pending = field(default_factory=_Pending)
    fitted: dict[Shape, float] = field(default_factory=dict)
    """Step times the present curve was made from."""
    curves: dict[tuple[int, ...], SpeedCurve] = field(default_factory=dict)
    loss_fit: tuple[int, float] | None = None
    """Step at which the loss curve was last fitted, and the step at which it will come to rest."""

    def median(self, shape: Shape) -> StepTime:
        step_s = statistics.median(sample[0] for sample in self.samples[shape])
        exposed_s = statistics.median(sample[1] for sample in self.samples[shape])
        return StepTime(step_s, min(exposed_s, step_s))


class Knowledge:
    """All jobs that are not over."""

    def __init__(self, cluster: Cluster, restart_prior_s: float) -> None:
        self._cluster = cluster
        self._jobs: dict[str, JobKnowledge] = {}
        self._restart = RestartCost(restart_prior_s)
        """What restarts cost jobs in general."""
        self._unknown: dict[tuple[float, tuple[int, ...]], SpeedCurve] = {}

    def of(self, job_id: str) -> JobKnowledge:
        return self._jobs.setdefault(job_id, JobKnowledge())

    def newest(self, job_id: str) -> Report | None:
        """The last report of its first worker."""
        known = self._jobs.get(job_id)
        return known.newest if known else None

    def forget(self, job_id: str) -> None:
        """The job is over."""
        self._jobs.pop(job_id, None)

    # What is observed ------------------------------------------------------------------------------------------

    def reported(self, job: Job, report: Report, now_s: float) -> bool:
        """Take in a report of the present attempt; returns whether it is worth a decision."""
        if report.rank != 0:
            return False
        known = self.of(job.id)
        first = known.attempt != report.attempt
        if first:
            known.attempt, known.num_reports = report.attempt, 0
            self._started_again(known, now_s)
        known.num_reports += 1
        known.newest = report
        if report.can_resume is not None:
            known.can_resume = report.can_resume
        if report.loss is not None and (not known.losses or report.step > known.losses[-1][0]):
            known.losses.append((report.step, report.loss))
        if job.partner is not None or report.step_s <= 0 or len(job.devices) != report.world_size:
            return first  # sharing its devices it is slower than it would be: says nothing about a size
        if known.num_reports == 1 or (known.num_reports == 2 and report.step_s < _SLOW_STEP_S):
            return first  # the first steps warm up caches, allocators and connections
        return self._measured(known, self._cluster.shape(job.devices), report)

    def _measured(self, known: JobKnowledge, shape: Shape, report: Report) -> bool:
        samples = known.samples.setdefault(shape, deque(maxlen=_KEPT_SAMPLES))
        samples.append((report.step_s, report.exposed_s))
        before_s = known.fitted.get(shape)
        now_s = known.median(shape).step_s
        if before_s is None or abs(now_s - before_s) > NOTEWORTHY * before_s:
            self._outdated(known)
            return True
        if abs(now_s - before_s) > _REFIT * before_s:
            self._outdated(known)
        return False

    @staticmethod
    def _outdated(known: JobKnowledge) -> None:
        known.curves = {}
        known.fitted = {shape: known.median(shape).step_s for shape in known.samples}

    def stop_ordered(self, job_id: str, now_s: float) -> None:
        self.of(job_id).pending = _Pending(stop_s=now_s)

    def stopped(self, job_id: str, now_s: float, *, saved: bool) -> None:
        """The workers are gone; ``saved`` says whether they could go on from where they were."""
        known = self.of(job_id)
        if not saved:
            known.can_resume = False
        if known.pending.stop_s is not None:
            known.pending = _Pending(stopping_s=now_s - known.pending.stop_s)

    def start_ordered(self, job_id: str, now_s: float) -> None:
        self.of(job_id).pending.start_s = now_s

    def _started_again(self, known: JobKnowledge, now_s: float) -> None:
        if known.pending.start_s is None:
            return
        took_s = max(known.pending.stopping_s + now_s - known.pending.start_s, 0.0)
        if known.restart is None:
            # The first start tells as much about a restart as anything can before there was one.
            known.restart = RestartCost(prior_s=took_s)
        else:
            known.restart = known.restart.observed(took_s)
        self._restart = self._restart.observed(took_s)
        known.pending = _Pending()

    # What is believed ------------------------------------------------------------------------------------------

    def is_movable(self, job: Job) -> bool:
        """Whether stopping the job now would not lose its work: it reports, and it can go on after a stop."""
        known = self._jobs.get(job.id)
        if known is None or not known.can_resume or known.attempt != job.attempt:
            return False
        return job.partner is not None or self._cluster.shape(job.devices) in known.samples

    def restart_s(self, job_id: str) -> float:
        known = self._jobs.get(job_id)
        return (known.restart if known and known.restart else self._restart).estimate_s

    def curve(self, job: Job, first_sizes: tuple[int, ...]) -> SpeedCurve:
        """Step times at the sizes it may be given: ``first_sizes`` at first, later up to twice the largest tried."""
        known = self._jobs.get(job.id)
        if known is None or not known.samples:
            return self._unknown_curve(first_sizes)
        allowed = job.spec.allowed_sizes(self._cluster.num_devices)
        curve = known.curves.get(allowed)
        if curve is None:
            model = fit_speed(
                [
                    SpeedSample(shape, known.median(shape).step_s, known.median(shape).exposed_s)
                    for shape in known.samples
                ]
            )
            curve = known.curves[allowed] = model.curve(
                {*allowed, *(sum(shape) for shape in known.samples)}, self._cluster
            )
            known.fitted = {shape: known.median(shape).step_s for shape in known.samples}
        return curve

    def present_curve(self, job: Job) -> SpeedCurve:
        """Nothing but the size it has, for a job that is to keep it."""
        size = len(job.devices)
        known = self._jobs.get(job.id)
        if known and (shape := self._cluster.shape(job.devices)) in known.samples:
            return SpeedCurve({size: known.median(shape)})
        return self._unknown_curve((size,))

    def _unknown_curve(self, sizes: tuple[int, ...]) -> SpeedCurve:
        step_s = self._usual_step_s()
        key = (step_s, sizes)
        if key not in self._unknown:
            self._unknown = {}
        return self._unknown.setdefault(key, SpeedCurve({size: StepTime(step_s / size) for size in sizes}))

    def _usual_step_s(self) -> float:
        """What a step of one worker takes, by the jobs that have told; rounded, so that it rarely changes."""
        times_s = [
            statistics.median(step_s for step_s, _ in samples) * sum(shape)
            for known in self._jobs.values()
            for shape, samples in known.samples.items()
        ]
        return float(f"{statistics.median(times_s):.1g}") if times_s else _UNKNOWN_STEP_S

    def remaining_steps(self, job: Job, curve: SpeedCurve, now_s: float, usual_s: float) -> float:
        """Declared, else until the loss comes to rest, else as much as it has had (and at least what is usual)."""
        known = self._jobs.get(job.id)
        newest = known.newest if known else None
        step = max(job.step, newest.step if newest else 0)
        total = (newest.total_steps if newest else None) or job.total_steps
        if total is not None:
            return float(max(total - step, 1))
        if known and (rest := self._steps_to_rest(known, step)) is not None:
            return max(rest - step, 1.0)
        held_s = job.attained_device_s + len(job.devices) * (now_s - job.changed_s)
        smallest = curve.sizes[0]
        return max(held_s / smallest, usual_s, 1.0) / curve.times[smallest].step_s

    def _steps_to_rest(self, known: JobKnowledge, step: int) -> float | None:
        if len(known.losses) < _MIN_LOSSES or known.newest is None or known.newest.epoch < 1:
            return None
        if known.loss_fit is None or step > _REFIT_LOSS_GROWTH * known.loss_fit[0]:
            # scipy's optimiser is loaded by the first job that needs it.
            from weft.perf.convergence import fit_loss

            curve = fit_loss([at for at, _ in known.losses], [loss for _, loss in known.losses])
            known.loss_fit = (step, curve.steps_to_standstill(step / known.newest.epoch))
        return known.loss_fit[1]

    # What is kept while the controller is away ---------------------------------------------------------------------

    def document(self) -> dict[str, Any]:
        """Plain data for a JSON file."""
        return {
            "restart_prior_s": self._restart.prior_s,
            "restarts_s": list(self._restart.seen_s),
            "jobs": {
                job_id: {
                    "samples": [[list(shape), [list(one) for one in kept]] for shape, kept in known.samples.items()],
                    "losses": [list(point) for point in known.losses],
                    "restart": [known.restart.prior_s, list(known.restart.seen_s)] if known.restart else None,
                    "can_resume": known.can_resume,
                    "attempt": known.attempt,
                }
                for job_id, known in self._jobs.items()
            },
        }

    def restore(self, document: Mapping[str, Any], job_ids: Iterable[str]) -> None:
        """Take back what was kept of these jobs; raises ``ValueError`` and the like on anything odd."""
        restored: dict[str, JobKnowledge] = {}
        for job_id in job_ids:
            kept = document["jobs"].get(job_id)
            if kept is None:
                continue
            known = restored[job_id] = JobKnowledge(can_resume=bool(kept["can_resume"]), attempt=int(kept["attempt"]))
            for shape, samples in kept["samples"]:
                known.samples[tuple(map(int, shape))] = deque(
                    ((float(step_s), float(exposed_s)) for step_s, exposed_s in samples), maxlen=_KEPT_SAMPLES
                )
            known.losses.extend((int(step), float(loss)) for step, loss in kept["losses"])
            known.num_reports = _KEPT_SAMPLES
            known.fitted = {shape: known.median(shape).step_s for shape in known.samples}
            if kept["restart"]:
                known.restart = RestartCost(float(kept["restart"][0]), tuple(map(float, kept["restart"][1])))
        self._restart = RestartCost(self._restart.prior_s, tuple(map(float, document["restarts_s"])))
        self._jobs.update(restored)
