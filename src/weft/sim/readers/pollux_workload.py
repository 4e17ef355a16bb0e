"""Workloads of the Pollux artifact: name, time, application, num_replicas, batch_size."""

from __future__ import annotations

from weft.core.job import JobSpec
from weft.sim.readers.applications import ApplicationFolder
from weft.sim.readers.assembly import SourcedJob, check_size, job_spec
from weft.sim.readers.tables import Row
from weft.sim.workload import TrueJob

COLUMNS = ("name", "time", "application", "num_replicas", "batch_size")


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
