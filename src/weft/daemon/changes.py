"""Whether a job can be changed as requested."""

from __future__ import annotations

from weft.control.state import Job
from weft.core.cluster import Cluster
from weft.core.events import JobChanged
from weft.core.plural import plural
from weft.daemon.contract import ConflictError
from weft.errors import UsageError


def check_change(job: Job, event: JobChanged, cluster: Cluster, *, can_resume: bool) -> None:
    """Raise if not; ``can_resume``: whether the job is known to resume after a stop."""
    if (event.weight, event.priority, event.min_workers, event.max_workers) == (None, None, None, None):
        raise UsageError("nothing to change: expected weight, priority, min_workers, or max_workers")
    if job.state.is_final or job.is_cancelled:
        words = "is being canceled" if not job.state.is_final else f"is already {job.state.value}"
        raise ConflictError(f"job {job.id} {words}: only pending and running jobs can be changed")
    spec = job.spec.changed(event.weight, event.priority, event.min_workers, event.max_workers)
    num_devices = sum(cluster.devices_by_node)
    if not spec.allowed_sizes(num_devices):
        raise UsageError(
            f"job {job.id} would need at least {spec.min_workers} workers, this cluster has "
            f"{plural(num_devices, 'device')}: choose fewer"
        )
    num = len(job.devices)
    if num and not spec.min_workers <= num <= spec.max_workers and not can_resume:
        raise ConflictError(
            f"job {job.id} runs with {num} workers and cannot be resized without losing its work: choose limits that "
            f"include {num}, or wait until it has reported progress and can resume"
        )
