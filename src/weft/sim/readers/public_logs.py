"""Public cluster logs: their columns, and the jobs they describe.

A Pollux workload (name, time, application, num_replicas, batch_size) refers to application profiles.  So does an
ElasticFlow trace (job_id, submit_time, model_name, batch_size, duration and usually num_gpu, iteration).  The Philly
log (timestamp, duration, num_gpus, gpu_time, cluster) has one size per job: here a job may run on 1 to twice as many
GPUs, in powers of two, with the scaling assumed in :mod:`weft.sim.workload`; the virtual cluster becomes its user.

A request for a size at which the application was not measured (several replicas of one that runs on a single GPU) is
read as a request for the next smaller one.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from weft.core.job import JobSpec
from weft.sim.readers.application_profiles import ApplicationFolder
from weft.sim.readers.assembly import SourcedJob, job_spec
from weft.sim.readers.tables import Row
from weft.sim.workload import Profile, TrueJob, assumed_profile, doubling_sizes

PHILLY_COLUMNS = ("timestamp", "duration", "num_gpus", "cluster")
MAX_GROWTH = 2


def philly_jobs(rows: Sequence[Row]) -> list[SourcedJob]:
    times_s = [_philly_submitted_s(row) for row in rows]
    start_s = min(times_s, default=0.0)
    return [_philly_job(row, time_s - start_s) for row, time_s in zip(rows, times_s, strict=True)]


def _philly_submitted_s(row: Row) -> float:
    text = row.text("timestamp")
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise row.error(f"timestamp is {text!r}: expected a time like 2017-10-09 07:01:55") from None
    return (moment.replace(tzinfo=None) - datetime(1970, 1, 1)).total_seconds()


def _philly_job(row: Row, submitted_s: float) -> SourcedJob:
    num_gpus = row.count("num_gpus")
    sizes = doubling_sizes(1, MAX_GROWTH * num_gpus, num_gpus)
    spec = job_spec(
        row,
        lambda: JobSpec(
            f"philly-{row.line}",
            submitted_s,
            max_workers=sizes[-1],
            requested_workers=num_gpus,
            sizes=sizes,
            user=row.text("cluster"),
        ),
    )
    return SourcedJob(TrueJob(spec, assumed_profile(num_gpus, sizes), row.positive("duration")), row)


POLLUX_COLUMNS = ("name", "time", "application", "num_replicas", "batch_size")


def pollux_job(row: Row, applications: ApplicationFolder, *, adapt_batch: bool = False) -> SourcedJob:
    """The batch size stays fixed unless it may adapt; the number of workers may be any that the profile covers."""
    batch_size = row.count("batch_size")
    replicas = row.count("num_replicas")
    profile, total_steps = applications.behavior(row, row.text("application"), batch_size)
    if total_steps is None:
        raise row.error(
            f"the profile of {row.text('application')} does not have the number of training steps: "
            "use weft's own columns, with `steps`"
        )
    name, submitted_s = row.text("name"), row.non_negative("time")
    if adapt_batch:
        batches = applications.batch_range(row, row.text("application"))
        spec = _free_spec(row, name, submitted_s, batches.optimistic, replicas)
        return SourcedJob(TrueJob(spec, batches.optimistic, batches.total_progress, batches.stages), row)
    spec = _free_spec(row, name, submitted_s, profile, replicas)
    return SourcedJob(TrueJob(spec, profile, total_steps), row)


ELASTICFLOW_COLUMNS = ("job_id", "submit_time", "model_name", "batch_size", "duration")


def elasticflow_jobs(rows: Sequence[Row], applications: ApplicationFolder) -> list[SourcedJob]:
    start_s = min((row.non_negative("submit_time") for row in rows), default=0.0)
    return [_elasticflow_job(row, applications, start_s) for row in rows]


def _elasticflow_job(row: Row, applications: ApplicationFolder, start_s: float) -> SourcedJob:
    """``duration`` is at ``num_gpu`` GPUs (1 where the trace does not say); ``iteration`` counts where it is given."""
    profile, _ = applications.behavior(row, row.text("model_name"), row.count("batch_size"))
    requested = row.count("num_gpu") if row.has("num_gpu") else 1
    submitted_s = row.non_negative("submit_time") - start_s
    spec = _free_spec(row, f"{row.text('model_name')}-{row.text('job_id')}", submitted_s, profile, requested)
    duration_s = row.positive("duration")
    if row.has("iteration"):
        return SourcedJob(TrueJob(spec, profile, row.positive("iteration")), row)
    return SourcedJob(TrueJob(spec, profile, duration_s / profile.step_time((spec.requested_workers,)).step_s), row)


def _free_spec(row: Row, name: str, submitted_s: float, profile: Profile, requested: int) -> JobSpec:
    """A job that may have every size its application was measured at."""
    sizes = profile.sizes
    return job_spec(
        row,
        lambda: JobSpec(
            name,
            submitted_s,
            min_workers=sizes[0],
            max_workers=sizes[-1],
            requested_workers=max((size for size in sizes if size <= requested), default=sizes[0]),
            sizes=() if len(sizes) == sizes[-1] else sizes,
        ),
    )
