"""Readers for workload files and profiles; :func:`read_workload` picks one by file name and header."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from weft.errors import InputError
from weft.sim.readers.application_profiles import ApplicationFolder
from weft.sim.readers.assembly import SourcedJob, assemble
from weft.sim.readers.kind_profiles import KindFolder
from weft.sim.readers.public_logs import (
    ELASTICFLOW_COLUMNS,
    PHILLY_COLUMNS,
    POLLUX_COLUMNS,
    elasticflow_jobs,
    philly_jobs,
    pollux_job,
)
from weft.sim.readers.queue_file import OPTIONAL, REQUIRED, QueueReader, yaml_rows
from weft.sim.readers.tables import Row, read_text, table_header, table_rows
from weft.sim.workload import Workload

# Our own columns include neither: one of them is enough to recognize a Pollux file, so that the error names the missing
# column instead of calling the format unknown.
POLLUX_MARKS = {"time", "num_replicas"}


def read_workload(
    path: Path,
    *,
    num_devices: int,
    profiles: Path | None = None,
    adapt_batch: bool = False,
    kinds: Sequence[str] = (),
) -> Workload:
    """The workload in ``path`` for a cluster of ``num_devices``.

    ``profiles`` = None looks for a folder ``profiles`` next to the workload's folder, then inside it.  With
    ``adapt_batch``, every job may use any batch size that its application was measured at.  ``kinds``: device kinds for
    which the folder may have profiles of their own.
    """
    text = read_text(path)
    if adapt_batch and not _is_pollux(path, text):
        raise InputError(
            "--adapt-batch needs to know how each job's progress depends on its batch size: expected a workload in "
            "Pollux's format (time, application, num_replicas), whose profiles say so; leave the option out",
            file=str(path),
        )
    quotas: dict[str, int] = {}
    if path.suffix.lower() in (".yaml", ".yml"):
        rows, quotas = yaml_rows(text, str(path))
        reader = QueueReader(_applications(path, profiles, kinds))
        jobs = [reader.job(row) for row in rows]
    else:
        jobs = _csv_jobs(path, text, profiles, kinds, adapt_batch=adapt_batch)
    return assemble(path.stem, str(path), jobs, num_devices=num_devices, quotas=quotas)


def _csv_jobs(
    path: Path, text: str, profiles: Path | None, kinds: Sequence[str], *, adapt_batch: bool
) -> list[SourcedJob]:
    file, header = str(path), set(table_header(text, str(path)))
    if {"timestamp", "num_gpus"} <= header:
        return philly_jobs(table_rows(text, file, required=PHILLY_COLUMNS))
    if header & POLLUX_MARKS:
        rows = table_rows(text, file, required=POLLUX_COLUMNS)
        applications = _needed_applications(path, profiles, kinds, rows, "application")
        return [pollux_job(row, applications, adapt_batch=adapt_batch) for row in rows]
    if header & {"model_name", "submit_time"}:
        rows = table_rows(text, file, required=ELASTICFLOW_COLUMNS)
        return elasticflow_jobs(rows, _needed_applications(path, profiles, kinds, rows, "model_name"))
    reader = QueueReader(_applications(path, profiles, kinds))
    return [reader.job(row) for row in table_rows(text, file, required=REQUIRED, optional=OPTIONAL)]


def _is_pollux(path: Path, text: str) -> bool:
    return path.suffix.lower() == ".csv" and bool(POLLUX_MARKS & set(table_header(text, str(path))))


def _needed_applications(
    path: Path, profiles: Path | None, kinds: Sequence[str], rows: Sequence[Row], column: str
) -> ApplicationFolder:
    applications = _applications(path, profiles, kinds)
    if applications is None:
        if not rows:
            raise InputError("no jobs: expected at least one line after the header", file=str(path))
        raise InputError(
            f"the jobs use applications such as {rows[0].text(column)!r}, but there is no profiles folder: "
            f"give --profiles DIR (looked for {path.parent.parent / 'profiles'} and {path.parent / 'profiles'})",
            file=str(path),
            line=rows[0].line,
        )
    return applications


def _applications(path: Path, profiles: Path | None, kinds: Sequence[str]) -> ApplicationFolder | None:
    if profiles is not None:
        return KindFolder(profiles, kinds)
    for folder in (path.resolve().parent.parent / "profiles", path.resolve().parent / "profiles"):
        if folder.is_dir():
            return KindFolder(folder, kinds)
    return None
