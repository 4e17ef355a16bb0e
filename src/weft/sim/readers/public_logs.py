"""Public cluster logs: which columns they have, and the jobs they describe.

A Pollux workload (name, time, application, num_replicas, batch_size) names application profiles.  The Philly log
(timestamp, duration, num_gpus, gpu_time, cluster) knows one size per job: here a job may run on 1 to twice as many
GPUs, in powers of two, with the scaling assumed in :mod:`weft.sim.workload`; the virtual cluster becomes its user.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from weft.core.job import JobSpec
from weft.sim.readers.application_profiles import ApplicationFolder
from weft.sim.readers.assembly import SourcedJob, check_size, job_spec
from weft.sim.readers.tables import Row
from weft.sim.workload import TrueJob, assumed_profile, doubling_sizes

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


def pollux_job(row: Row, applications: ApplicationFolder) -> SourcedJob:
    """The batch size is kept fixed, the number of workers is free up to what the profile covers."""
    batch_size = row.count("batch_size")
    replicas = row.count("num_replicas")
    profile, total_steps = applications.behaviour(row, row.text("application"), batch_size)
    if total_steps is None:
        raise row.error(
            f"the profile of {row.text('application')} does not say how many steps a training takes: "
            "use weft's own columns, with `steps`"
        )
    check_size(row, profile.sizes, replicas, "num_replicas")
    spec = job_spec(
        row,
        lambda: JobSpec(
            row.text("name"),
            row.non_negative("time"),
            max_workers=profile.sizes[-1],
            requested_workers=replicas,
            sizes=() if len(profile.sizes) == profile.sizes[-1] else profile.sizes,
        ),
    )
    return SourcedJob(TrueJob(spec, profile, total_steps), row)
