"""From rows to a workload: checks across all jobs, for every format."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from weft.core.job import JobSpec
from weft.errors import InputError, UsageError
from weft.sim.readers.tables import Row
from weft.sim.workload import TrueJob, Workload

MAX_TIME_S = 1e9
"""Of submissions and lengths, 32 years: a replay decides every few minutes, so that more would hardly ever end."""


@dataclass(frozen=True, slots=True)
class SourcedJob:
    """A job and the row it came from."""

    job: TrueJob
    row: Row


def job_spec(row: Row, build: Callable[[], JobSpec]) -> JobSpec:
    """``build()``; errors that :class:`JobSpec` raises get the place in the file."""
    try:
        return build()
    except InputError:
        raise
    except UsageError as error:
        raise row.error(str(error)) from None


def check_size(row: Row, sizes: Sequence[int], workers: int, column: str) -> None:
    """Refuse a size that the profile does not have."""
    if workers not in sizes:
        known = f"1 to {sizes[-1]}" if len(sizes) == sizes[-1] else ", ".join(map(str, sizes))
        raise row.error(f"{column} is {workers}, a size the job's profile lacks: expected {known}")


def assemble(
    name: str,
    file: str,
    jobs: Sequence[SourcedJob],
    *,
    num_devices: int,
    quotas: Mapping[str, int] | None = None,
) -> Workload:
    """The jobs in order of submission, or an :class:`InputError` for the first invalid one."""
    if not jobs:
        raise InputError("no jobs: expected at least one line after the header", file=file)
    seen: dict[str, int] = {}
    for sourced in jobs:
        spec, row = sourced.job.spec, sourced.row
        if spec.id in seen:
            raise row.error(f"the name {spec.id!r} is already used on line {seen[spec.id]}: names must be unique")
        seen[spec.id] = row.line
        length_s = sourced.job.total_steps * sourced.job.profile.step_time((spec.requested_workers,)).step_s
        for what, seconds in (("is submitted after", spec.submitted_s), ("runs for", length_s)):
            if seconds > MAX_TIME_S:
                raise row.error(f"job {spec.id} {what} {seconds:g} s: expected at most {MAX_TIME_S:g} (32 years)")
        needed = max(spec.min_workers, spec.requested_workers)
        if needed > num_devices:
            raise row.error(
                f"job {spec.id} wants {needed} GPUs, this cluster has {num_devices}: "
                f"lower its size or give --gpus {needed} or more"
            )
    ordered = sorted((sourced.job for sourced in jobs), key=lambda job: job.spec.submitted_s)
    return Workload(name, tuple(ordered), quotas or {})


def fit_requests(workload: Workload, num_devices: int) -> tuple[Workload, list[str]]:
    """The workload with requests reduced to fit a smaller cluster, and the names of the jobs reduced."""
    jobs, cut = [], []
    for job in workload.jobs:
        spec = job.spec
        allowed = spec.allowed_sizes(num_devices)
        if not allowed:
            raise UsageError(
                f"job {spec.id} needs at least {spec.min_workers} GPUs, this cluster has {num_devices}: "
                f"give --gpus {spec.min_workers} or more"
            )
        if spec.requested_workers > num_devices:
            cut.append(spec.id)
            job = replace(job, spec=replace(spec, requested_workers=allowed[-1]))
        jobs.append(job)
    return (replace(workload, jobs=tuple(jobs)) if cut else workload), cut
