"""The Philly cluster log: timestamp, duration, num_gpus, gpu_time, cluster.

The log knows one size per job.  Here a job may run on 1 to twice as many GPUs, in powers of two, with the
assumed scaling of :mod:`weft.sim.readers.assumed_scaling`; the virtual cluster becomes its user.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from weft.core.job import JobSpec
from weft.sim.readers.assembly import SourcedJob, job_spec
from weft.sim.readers.assumed_scaling import assumed_profile, doubling_sizes
from weft.sim.readers.tables import Row
from weft.sim.workload import TrueJob

COLUMNS = ("timestamp", "duration", "num_gpus", "cluster")
MAX_GROWTH = 2


def philly_jobs(rows: Sequence[Row]) -> list[SourcedJob]:
    times_s = [_submitted_s(row) for row in rows]
    start_s = min(times_s, default=0.0)
    return [_job(row, time_s - start_s) for row, time_s in zip(rows, times_s, strict=True)]


def _submitted_s(row: Row) -> float:
    text = row.text("timestamp")
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise row.error(f"timestamp is {text!r}: expected a time like 2017-10-09 07:01:55") from None
    return (moment.replace(tzinfo=None) - datetime(1970, 1, 1)).total_seconds()


def _job(row: Row, submitted_s: float) -> SourcedJob:
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
