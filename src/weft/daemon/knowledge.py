"""What the controller has learned about each job: how fast it is, how much is left, whether it can resume.

Everything here is an estimate.  It is saved periodically; losing it costs only a few measurements.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from weft.control.decision import Belief
from weft.control.state import Job, JobState
from weft.core.cluster import Cluster, Shape
from weft.core.speed import MAX_STEP_S, MIN_STEP_S, SpeedCurve, StepTime, fastest
from weft.core.status_rows import SpeedRow
from weft.core.step_report import StepReport
from weft.core.submission import MAX_TOTAL_STEPS
from weft.daemon.batch_choice import BatchChoices
from weft.daemon.family_knowledge import FamilyKnowledge
from weft.daemon.kind_speeds import KindSpeeds
from weft.daemon.newest_reports import NewestReports
from weft.daemon.pairs import Pairs
from weft.daemon.restart_times import RestartTimes
from weft.daemon.step_samples import MAX_SAMPLES, Samples, median_step, medians, restored_samples, samples_document
from weft.perf.exploration import explored_curve
from weft.perf.job_lengths import least_assumed_s

NOTEWORTHY = 0.2
"""A step time that has changed by more than this fraction is worth a decision."""
_REFIT = 0.05
_MIN_SAMPLES_TO_SHARE = 5
"""Pairs are formed based on speeds of jobs alone, which can no longer be measured once the jobs share."""
_MAX_LOSSES = 200
_MIN_LOSSES = 12
_REFIT_LOSS_GROWTH = 1.25
_SLOW_STEP_S = 1.0
_MAX_LOSS = 1e100
"""Its square is still finite."""


@dataclass
class JobKnowledge:
    """One job."""

    samples: Samples = field(default_factory=dict)
    losses: deque[tuple[int, float]] = field(default_factory=lambda: deque(maxlen=_MAX_LOSSES))
    can_resume: bool = True
    attempt: int = 0
    """The attempt that reported last."""
    num_reports: int = 0
    """From that attempt's first worker."""
    partner: str | None = None
    """The job it shared its devices with when it last reported."""
    memory_bytes: int = 0
    """Peak memory of any of its workers."""
    takes_turns: bool = False
    """Whether it could share, and its reports include all its waits for the network."""
    fitted: dict[Shape, float] = field(default_factory=dict)
    """Step times the current curve was fitted to."""
    predicted_s: dict[int, float] = field(default_factory=dict)
    """Step time expected at each size before the job ran at it."""
    decided: dict[Shape, float] = field(default_factory=dict)
    """Step times that last led to a decision, so that many small changes add up to one that does."""
    curves: dict[tuple[int, ...], SpeedCurve] = field(default_factory=dict)
    loss_fit: tuple[int, float | None] | None = None
    """Step at which the loss curve was last fitted, and the step at which the loss will stop improving, if known."""

    def median(self, shape: Shape) -> StepTime:
        return median_step(self.samples[shape])

    def median_steps_s(self) -> dict[Shape, float]:
        return {shape: time.step_s for shape, time in medians(self.samples).items()}


class Knowledge:
    """What is known about all active jobs."""

    def __init__(self, cluster: Cluster, restart_prior_s: float, handover_s: float = 0.0) -> None:
        self.cluster = cluster
        self.handover_s = handover_s
        self.pairs = Pairs()
        self.batches = BatchChoices()
        self.reports = NewestReports()
        self.kinds = KindSpeeds()
        self.restarts = RestartTimes(restart_prior_s)
        self._jobs: dict[str, JobKnowledge] = {}
        self._families = FamilyKnowledge()

    def of(self, job_id: str) -> JobKnowledge:
        return self._jobs.setdefault(job_id, JobKnowledge())

    @contextmanager
    def supposing(self, job_id: str, *, can_resume: bool) -> Iterator[None]:
        """Inside, there is a job that nobody has submitted."""
        self.of(job_id).can_resume = can_resume
        try:
            yield
        finally:
            del self._jobs[job_id]

    def finished(self, job: Job) -> None:
        """The job is over: keep only what it tells about other jobs of its family."""
        known = self._jobs.pop(job.id, None)
        if known is not None and known.samples and job.state is JobState.COMPLETED:
            self._families.finished(job, self.cluster)
        self.pairs.forget(job.id)
        self.batches.forget(job.id)
        self.kinds.forget(job.id)
        self.reports.forget(job.id)
        self.restarts.forget(job.id)

    # What is observed ------------------------------------------------------------------------------------------

    def progressed(self, active: Iterable[Job], now_s: float) -> None:
        """How far all unfinished jobs have come."""
        self._families.progressed(active, self.cluster, now_s)

    def reported(self, job: Job, report: StepReport, now_s: float) -> bool:
        """Record a report of the current attempt; returns whether it is worth a decision."""
        if report.rank != 0:
            return False
        self.reports.add(report)
        known = self.of(job.id)
        first = known.attempt != report.attempt
        if first:
            known.attempt, known.num_reports = report.attempt, 0
            self.restarts.reported(job.id, now_s)
        if self.cluster.is_mixed:
            self._entered(job, known)
        known.num_reports += 1
        report = self.batches.reported(report, counts=known.num_reports > 2 and job.partner is None)
        progress = report.progress
        if report.can_resume is not None:
            known.can_resume = report.can_resume
        if progress.loss is not None and (not known.losses or progress.step > known.losses[-1][0]):
            known.losses.append((progress.step, progress.loss))
            self._refit_loss(known, report)
        known.memory_bytes = max(known.memory_bytes, report.memory_bytes)
        known.takes_turns = report.takes_turns
        was_sharing, known.partner = known.partner is not None, job.partner
        if was_sharing and job.partner is None:
            return first  # it shared its devices for part of the time this report covers
        if job.partner is not None:
            return self._reported_sharing(job, job.partner, report, now_s) or first
        if not MIN_STEP_S <= progress.step_s <= MAX_STEP_S or len(job.devices) != report.world_size:
            return first
        if known.num_reports == 1 or (known.num_reports == 2 and progress.step_s < _SLOW_STEP_S):
            return first  # the first steps warm up caches, allocators and connections
        return self._measured(job, known, report)

    def _entered(self, job: Job, known: JobKnowledge) -> None:
        """Keep in ``samples`` only those on the device kind it runs on now."""
        samples = self.kinds.entered(job.id, self.cluster.kind_of(job.devices), known.samples)
        if samples is not None:
            known.samples, known.curves, known.decided, known.predicted_s = samples, {}, {}, {}
            known.fitted = known.median_steps_s()

    def _reported_sharing(self, job: Job, partner: str, report: StepReport, now_s: float) -> bool:
        """A job that shares is slower than alone: its steps tell only about the pair, not about a size."""
        alone = {job_id: self.alone(job_id, job.devices) for job_id in (job.id, partner)}
        known = {job_id: step for job_id, step in alone.items() if step is not None}
        return len(known) == 2 and self.pairs.reported(
            job.id, partner, report, now_s, known, self.handover_s, fills=job.fills
        )

    def alone(self, job_id: str, devices: tuple[int, ...]) -> StepTime | None:
        """The step time of a job alone on these devices: measured, otherwise by its curve, otherwise unknown."""
        known = self._jobs.get(job_id)
        if known is None or not known.samples:
            return None
        shape = self.cluster.shape(devices)
        if shape in known.samples:
            return known.median(shape)
        return next((curve.times[len(devices)] for curve in known.curves.values() if len(devices) in curve.times), None)

    def _measured(self, job: Job, known: JobKnowledge, report: StepReport) -> bool:
        shape = self.cluster.shape(job.devices)
        if known.samples and all(sum(tried) != len(job.devices) for tried in known.samples):
            expected = self.curve(job, ()).times.get(len(job.devices))
            if expected is not None:
                known.predicted_s[len(job.devices)] = expected.step_s
        samples = known.samples.setdefault(shape, deque(maxlen=MAX_SAMPLES))
        could_share = self.can_share(job)
        samples.append((report.progress.step_s, report.gap_s))
        is_news = self.can_share(job) and not could_share
        before_s = known.fitted.get(shape)
        now_s = known.median(shape).step_s
        if before_s is not None and abs(now_s - before_s) <= _REFIT * before_s:
            return is_news
        # Fitted here, report by report, so that a decision about many jobs needs only lookups.
        known.curves = {}
        known.fitted = known.median_steps_s()
        if not self.cluster.is_mixed:  # on devices of several kinds, a relative's speed says too little
            self._families.measured(job, shape, known.median(shape))
        self.kinds.renew()
        self.curve(job, ())
        decided_s = known.decided.get(shape)
        if decided_s is not None and abs(now_s - decided_s) <= NOTEWORTHY * decided_s:
            return is_news
        known.decided[shape] = now_s
        return True

    def stopped(self, job_id: str, attempt: int, now_s: float, *, saved: bool) -> None:
        """The workers are gone; ``saved`` says whether the job can resume where they stopped."""
        known = self.of(job_id)
        if not saved and known.attempt == attempt:
            known.can_resume = False  # it made steps and lost them
        self.restarts.stopped(job_id, now_s)

    # What is believed ------------------------------------------------------------------------------------------

    def belief(self, job: Job, first_sizes: tuple[int, ...], now_s: float, usual_s: float) -> Belief:
        """What a decision is told about the job."""
        curves: Mapping[str, SpeedCurve] = {}
        if self.cluster.is_mixed:
            samples = {job_id: known.samples for job_id, known in self._jobs.items()}
            curves = self.kinds.curves(job, self.cluster, samples, self._families.usual_curve, first_sizes)
        own = curves.get(self.cluster.kind_of(job.wanted)) if job.wanted else None
        curve = own or (fastest(curves) if curves else self.curve(job, first_sizes))
        restart_s = self.restarts.estimate_s(job.id)
        remaining_steps = self.remaining_steps(job, curve, now_s, least_assumed_s(usual_s, restart_s))
        remaining_steps *= self.batches.script_steps(job.id) if self.is_length_known(job) else 1.0
        known = self._jobs.get(job.id)
        return Belief(
            curve,
            remaining_steps,
            restart_s,
            self.can_share(job),
            is_length_known=self.is_length_known(job),
            can_stop=known is not None and known.attempt > 0 and known.can_resume,
            curves=curves,
        )

    def looks_fixed(self, job_id: str) -> bool:
        """Whether the job, which has not reported yet, probably cannot be resized once it has started."""
        known = self._jobs.get(job_id)
        return known is not None and not known.can_resume and not known.samples

    def is_movable(self, job: Job) -> bool:
        """Whether the job can be stopped without losing its work: it reports, and it can resume after a stop."""
        known = self._jobs.get(job.id)
        if known is None or not known.can_resume or known.attempt != job.attempt:
            return False
        return job.partner is not None or self.cluster.shape(job.devices) in known.samples

    def can_share(self, job: Job) -> bool:
        """Whether enough is known about the job to predict its speed in a pair."""
        known = self._jobs.get(job.id)
        if known is None or not known.takes_turns:
            return False
        return any(len(kept) >= _MIN_SAMPLES_TO_SHARE for kept in known.samples.values())

    def curve(self, job: Job, first_sizes: tuple[int, ...]) -> SpeedCurve:
        """Step times at the sizes it may be given, up to twice the largest tried by it or its family.

        ``first_sizes``: the only sizes that a job may be given if nothing is known about it.
        """
        known = self._jobs.get(job.id)
        if known is None or not known.samples:
            expected = self._families.curve(job, first_sizes, self.cluster)
            return expected or self._families.usual_curve(first_sizes)
        allowed = job.spec.allowed_sizes(self.cluster.num_devices)
        curve = known.curves.get(allowed)
        if curve is None:
            curve = known.curves[allowed] = explored_curve(medians(known.samples), allowed, self.cluster)
        return curve

    def speeds(self, job: Job) -> list[SpeedRow]:
        """Expected and measured step time at each size."""
        known = self._jobs.get(job.id)
        if known is None or not known.samples:
            return []
        measured: dict[int, list[float]] = {}
        for shape, samples in known.samples.items():
            measured.setdefault(sum(shape), []).extend(step_s for step_s, _ in samples)
        expected = {size: time.step_s for size, time in self.curve(job, ()).times.items() if size not in measured}
        expected |= known.predicted_s
        return [
            {
                "workers": size,
                "predicted_step_s": expected.get(size),
                "measured_step_s": statistics.median(measured[size]) if size in measured else None,
            }
            for size in sorted(measured.keys() | expected.keys())
        ]

    def remaining_steps(self, job: Job, curve: SpeedCurve, now_s: float, usual_s: float) -> float:
        """As declared, or else until the loss stops improving, or else like its family, or else as many as so far."""
        known = self._jobs.get(job.id)
        progress = self.reports.progress(job)
        if progress.total_steps is not None:
            return float(max(progress.total_steps - progress.step, 1))
        if known and known.loss_fit and known.loss_fit[1] is not None:
            return min(max(known.loss_fit[1] - progress.step, 1.0), float(MAX_TOTAL_STEPS))
        return self._families.remaining_steps(job, curve, now_s, usual_s)

    def is_length_known(self, job: Job) -> bool:
        """Whether its number of steps was declared and its step time measured."""
        known = self._jobs.get(job.id)
        is_measured = (known is not None and bool(known.samples)) or self._families.is_measured(job)
        return is_measured and self.reports.progress(job).total_steps is not None

    @staticmethod
    def _refit_loss(known: JobKnowledge, report: StepReport) -> None:
        if len(known.losses) < _MIN_LOSSES or report.epoch < 1:
            return
        step = report.progress.step
        if known.loss_fit is None or step > _REFIT_LOSS_GROWTH * known.loss_fit[0]:
            known.loss_fit = (step, steps_to_rest(list(known.losses), step / report.epoch))

    # What is kept across restarts of the controller ----------------------------------------------------------------

    def document(self) -> dict[str, Any]:
        """Plain data for a JSON file."""
        return {
            "restarts_s": self.restarts.document(),
            "apart": self.pairs.document(),
            "families": self._families.document(),
            "batches": self.batches.document(),
            "kinds": self.kinds.document(),
            "jobs": {
                job_id: {
                    "samples": samples_document(known.samples),
                    "losses": [list(point) for point in known.losses],
                    "restart": self.restarts.job_document(job_id),
                    "can_resume": known.can_resume,
                    "attempt": known.attempt,
                    "memory_bytes": known.memory_bytes,
                    "takes_turns": known.takes_turns,
                    "predicted_s": list(known.predicted_s.items()),
                }
                for job_id, known in self._jobs.items()
            },
        }

    def restore(self, document: Mapping[str, Any], job_ids: Iterable[str]) -> None:
        """Restore what was kept about these jobs; raises ``ValueError`` and the like on an invalid document."""
        restored: dict[str, JobKnowledge] = {}
        job_ids = list(job_ids)
        kept_jobs = {job_id: document["jobs"][job_id] for job_id in job_ids if job_id in document["jobs"]}
        for job_id, kept in kept_jobs.items():
            known = restored[job_id] = JobKnowledge(can_resume=bool(kept["can_resume"]), attempt=int(kept["attempt"]))
            known.samples = restored_samples(kept["samples"])
            known.memory_bytes = int(kept.get("memory_bytes", 0))
            known.takes_turns = bool(kept.get("takes_turns", False))
            known.predicted_s = {int(size): float(step_s) for size, step_s in kept.get("predicted_s", ())}
            known.losses.extend((int(step), float(loss)) for step, loss in kept["losses"])
            known.num_reports = MAX_SAMPLES
            known.fitted = known.median_steps_s()
            known.decided = dict(known.fitted)
        self.restarts.restore(document["restarts_s"], {job_id: kept["restart"] for job_id, kept in kept_jobs.items()})
        self._jobs.update(restored)
        if "families" in document:  # older controllers did not keep them
            self._families.restore(document["families"])
        self.pairs.restore(document.get("apart", ()), job_ids)
        self.batches.restore(document.get("batches", {}), job_ids)
        self.kinds.restore(document.get("kinds", {}), job_ids)


def steps_to_rest(losses: Sequence[tuple[int, float]], steps_per_epoch: float) -> float | None:
    """The step at which the loss stops improving, by the fitted loss curve; ``None`` if unknown."""
    if not all(0 <= loss < _MAX_LOSS for _, loss in losses):
        return None  # the curve models losses that approach a floor of zero or more
    # scipy's optimizer is loaded by the first job that needs it.
    from weft.perf.convergence import LossCurve, fit_loss

    curve = fit_loss([at for at, _ in losses], [loss for _, loss in losses])
    rest = LossCurve(curve.rate, curve.offset, max(curve.floor, 0.0)).steps_to_standstill(max(steps_per_epoch, 1.0))
    return rest if math.isfinite(rest) else None
