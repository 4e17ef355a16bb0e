"""What the controller expects of a job that has not been measured: what its family did, or else the average job."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from weft.control.state import Job
from weft.core.cluster import Cluster, Shape
from weft.core.speed import SpeedCurve, StepTime
from weft.perf.exploration import UNTRIED_GAIN, relatives_curve
from weft.perf.families import FamilySpeeds, family_of
from weft.perf.job_lengths import Kin, LengthHistory, kin_of


def family(job: Job) -> str:
    """The family of a job; a job without a name is a family of its own."""
    return family_of(job.spec.user, job.name) if job.name else job.id


def _kin(job: Job) -> Kin:
    return kin_of(job.spec.requested_workers, family(job))


def _held_s(job: Job, now_s: float) -> float:
    """Devices held x time so far."""
    return job.attained_device_s + len(job.devices) * (now_s - job.changed_s)


def _smallest_size(job: Job, cluster: Cluster) -> int:
    return next(iter(job.spec.allowed_sizes(cluster.num_devices)), job.spec.min_workers)


class FamilyKnowledge:
    """Speeds and lengths by family, including those of finished jobs."""

    def __init__(self) -> None:
        self._speeds = FamilySpeeds()
        self._lengths = LengthHistory()
        self._curves: dict[tuple[str, tuple[int, ...]], SpeedCurve | None] = {}
        self._cluster: Cluster | None = None
        """The one that the curves were made for."""
        self._usual_step_s = self._speeds.usual_step_s
        self._usual_curves: dict[tuple[int, ...], SpeedCurve] = {}

    def measured(self, job: Job, shape: Shape, time: StepTime) -> None:
        """A job takes ``time`` for a step on devices of ``shape``."""
        self._speeds.measured(family(job), shape, time)
        self._curves.clear()
        self._follow_usual_step()

    def finished(self, job: Job, cluster: Cluster) -> None:
        """A job has completed; its work is counted at its smallest size."""
        self._lengths.finished(_kin(job), job.attained_device_s / _smallest_size(job, cluster))

    def progressed(self, active: Iterable[Job], cluster: Cluster, now_s: float) -> None:
        """How far unfinished jobs have come: it tells how long jobs can be."""
        self._lengths.progressed((_kin(job), _held_s(job, now_s) / _smallest_size(job, cluster)) for job in active)

    def is_measured(self, job: Job) -> bool:
        """Whether the speed of its family is known."""
        return bool(self._speeds.of(family(job)))

    def curve(self, job: Job, sizes: tuple[int, ...], cluster: Cluster) -> SpeedCurve | None:
        """The step times of its family; None unless they cover all of ``sizes``."""
        if cluster is not self._cluster:
            self._cluster = cluster
            self._curves.clear()
        allowed = job.spec.allowed_sizes(cluster.num_devices)
        key = family(job), allowed
        if key not in self._curves:
            self._curves[key] = relatives_curve(self._speeds.of(key[0]), allowed, cluster)
        curve = self._curves[key]
        return curve if curve is not None and all(size in curve.times for size in sizes) else None

    def usual_curve(self, sizes: tuple[int, ...]) -> SpeedCurve:
        """For a job about which nothing is known: a step takes as long as the usual step."""
        if sizes not in self._usual_curves:
            first_s = self._usual_step_s / sizes[0]
            times = {size: StepTime(first_s / UNTRIED_GAIN ** math.log2(size / sizes[0])) for size in sizes}
            self._usual_curves[sizes] = SpeedCurve(times, untried=frozenset(sizes))
        return self._usual_curves[sizes]

    def _follow_usual_step(self) -> None:
        step_s = self._speeds.usual_step_s
        if step_s != self._usual_step_s:
            self._usual_step_s = step_s
            self._usual_curves = {}

    def remaining_steps(self, job: Job, curve: SpeedCurve, now_s: float, usual_s: float) -> float:
        """Remaining steps of a job of unknown length, based on finished jobs of its family."""
        smallest = curve.sizes[0]
        left_s = self._lengths.remaining_s(_kin(job), _held_s(job, now_s) / smallest, usual_s)
        return max(left_s, 1.0) / curve.times[smallest].step_s

    def document(self) -> dict[str, Any]:
        """Plain data for a JSON file."""
        return {"speeds": self._speeds.document(), "lengths_s": self._lengths.document()}

    def restore(self, document: Mapping[str, Any]) -> None:
        """Restore a document; raises ``ValueError`` and the like on an invalid one."""
        self._speeds.restore(document["speeds"])
        self._lengths.restore(document["lengths_s"])
        self._follow_usual_step()
