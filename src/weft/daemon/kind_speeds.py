"""Speeds on several device kinds, as learned from jobs.

A job's step times are kept by kind and shape.  On a kind where it has not run, it is expected to be as fast as on the
kind where it has, times the ratio between the two: the median over the jobs measured on both, at the same shape; 1
until there is such a job.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from weft.control.state import Job
from weft.core.cluster import Cluster
from weft.core.speed import SpeedCurve, StepTime
from weft.daemon.step_samples import Samples, medians, restored_samples, samples_document
from weft.perf.exploration import explored_curve


class KindSpeeds:
    """The samples of all jobs by device kind, in a cluster of several; nothing in a cluster of one."""

    def __init__(self) -> None:
        self._last: dict[str, str] = {}
        """The kind on which each job reported last; its samples there are not in ``_elsewhere``."""
        self._elsewhere: dict[str, dict[str, Samples]] = {}
        self._ratios: dict[tuple[str, str], float] = {}
        self._curves: dict[tuple[str, tuple[int, ...]], tuple[Cluster, dict[str, SpeedCurve]]] = {}

    def entered(self, job_id: str, kind: str, samples: Samples) -> Samples | None:
        """The job reports from ``kind``: keep its ``samples`` from its last kind and return those from this one.

        Returns None if the kind is the same.
        """
        last = self._last.setdefault(job_id, kind)
        if last == kind:
            return None
        kept = self._elsewhere.setdefault(job_id, {})
        if samples:
            kept[last] = samples
        self._last[job_id] = kind
        self.renew()
        return kept.pop(kind, {})

    def forget(self, job_id: str) -> None:
        self._last.pop(job_id, None)
        self._elsewhere.pop(job_id, None)

    def renew(self) -> None:
        """A measured speed has changed."""
        self._ratios.clear()
        self._curves.clear()

    def curves(
        self,
        job: Job,
        cluster: Cluster,
        samples: Mapping[str, Samples],
        unknown: Callable[[tuple[int, ...]], SpeedCurve],
        first_sizes: tuple[int, ...],
    ) -> dict[str, SpeedCurve]:
        """The job's speed on each kind; ``samples``: those of every job on the kind where it reported last."""
        key = (job.id, job.spec.allowed_sizes(cluster.most_of_one_kind) + first_sizes)
        kept = self._curves.get(key)
        if kept is None or kept[0] is not cluster:

            def ratio(kind: str, other: str) -> float:
                if (kind, other) not in self._ratios:
                    everybody = [self._by_kind(job_id, own) for job_id, own in samples.items()]
                    self._ratios[kind, other] = kind_ratio(everybody, kind, other)
                return self._ratios[kind, other]

            measured = self._by_kind(job.id, samples.get(job.id, {}))
            kept = self._curves[key] = (cluster, curves_by_kind(job, cluster, measured, ratio, unknown, first_sizes))
        return kept[1]

    def _by_kind(self, job_id: str, samples: Samples) -> dict[str, Samples]:
        own = {self._last[job_id]: samples} if samples and job_id in self._last else {}
        return own | self._elsewhere.get(job_id, {})

    def document(self) -> dict[str, Any]:
        """Plain data for a JSON file."""
        return {
            "last": self._last,
            "elsewhere": {
                job_id: {kind: samples_document(samples) for kind, samples in by_kind.items()}
                for job_id, by_kind in self._elsewhere.items()
            },
        }

    def restore(self, document: Mapping[str, Any], job_ids: Iterable[str]) -> None:
        """Raises ``ValueError`` and the like on an invalid document; older versions wrote an empty one."""
        for job_id in job_ids:
            if job_id in document.get("last", {}):
                self._last[job_id] = str(document["last"][job_id])
            for kind, samples in document.get("elsewhere", {}).get(job_id, {}).items():
                self._elsewhere.setdefault(job_id, {})[str(kind)] = restored_samples(samples)


def kind_ratio(jobs: Iterable[Mapping[str, Samples]], kind: str, other: str) -> float:
    """How much faster ``kind`` is than ``other``, by the median job measured on both; 1 without any."""
    ratios = []
    for by_kind in jobs:
        if kind in by_kind and other in by_kind:
            here, there = medians(by_kind[kind]), medians(by_kind[other])
            ratios += [there[shape].step_s / here[shape].step_s for shape in here.keys() & there.keys()]
    return statistics.median(ratios) if ratios else 1.0


def curves_by_kind(
    job: Job,
    cluster: Cluster,
    measured: Mapping[str, Samples],
    ratio: Callable[[str, str], float],
    unknown: Callable[[tuple[int, ...]], SpeedCurve],
    first_sizes: tuple[int, ...],
) -> dict[str, SpeedCurve]:
    """The expected speed of a job on each kind that has enough devices for it.

    ``ratio``: how much faster the first kind is than the second; ``unknown``: the curve of a job that never ran.
    """
    found: dict[str, SpeedCurve] = {}
    for kind, part in cluster.by_kind.items():
        allowed = job.spec.allowed_sizes(part.num_devices)
        if not allowed:
            continue
        if kind in measured:
            found[kind] = explored_curve(medians(measured[kind]), allowed, part)
        elif measured:
            other, samples = next(iter(measured.items()))
            curve = explored_curve(medians(samples), allowed, part)
            found[kind] = _scaled(curve, 1.0 / ratio(kind, other))
        else:
            sizes = tuple(size for size in first_sizes if size in allowed) or allowed[:1]
            found[kind] = _scaled(unknown(sizes), 1.0 / ratio(kind, cluster.kind_names[0]))
    return found


def _scaled(curve: SpeedCurve, factor: float) -> SpeedCurve:
    times = {size: StepTime(time.step_s * factor, time.exposed_s * factor) for size, time in curve.times.items()}
    return SpeedCurve(times, frozenset(times))
