"""weft's own workload format: one row per job, the same columns in CSV and YAML.

A job's behavior is given in one of three ways:

* ``step_times_s`` and ``steps``: measured seconds per step by number of workers, ``1:0.50 2:0.27 4:0.15``;
  ``exposed_s`` in the same form is the part in which devices wait for the network;
* ``application`` and ``batch_size``: a profile from ``--profiles`` (with ``steps`` if the profile has none);
* ``duration_s`` and ``workers``: how long it ran at one size; rigid unless ``min_workers`` or ``max_workers`` differ,
  and then with the scaling assumed in :mod:`weft.sim.workload`.

A YAML file has the same columns as keys, read by :mod:`weft.core.plain_yaml`, which trusts nothing:

    quotas: {alice: 8}          # optional: maximum number of GPUs per user
    jobs:
      - name: resnet
        submitted_s: 0
        steps: 1000
        step_times_s: {1: 0.50, 2: 0.27, 4: 0.15}
"""

from __future__ import annotations

import yaml

from weft.core.job import JobSpec
from weft.core.plain_yaml import compose, line_of, mapping, scalar
from weft.core.speed import StepTime
from weft.core.submission import MAX_WEIGHT
from weft.errors import InputError
from weft.sim.readers.application_profiles import ApplicationFolder
from weft.sim.readers.assembly import SourcedJob, check_size, job_spec
from weft.sim.readers.tables import Row
from weft.sim.workload import Profile, TableProfile, TrueJob, assumed_profile, doubling_sizes

REQUIRED = ("name", "submitted_s")
OPTIONAL = (
    "workers",
    "min_workers",
    "max_workers",
    "steps",
    "step_times_s",
    "exposed_s",
    "application",
    "batch_size",
    "duration_s",
    "user",
    "weight",
    "priority",
    "may_share",
)
WAYS = ("step_times_s", "application", "duration_s")


class QueueReader:
    """Turns rows into jobs; jobs of one kind share one profile."""

    def __init__(self, applications: ApplicationFolder | None) -> None:
        self._applications = applications
        self._tables: dict[tuple[str, str], TableProfile] = {}

    def job(self, row: Row) -> SourcedJob:
        given = [way for way in WAYS if row.has(way)]
        if len(given) != 1:
            found = " and ".join(given) or "none of them"
            raise row.error(f"expected one of {', '.join(WAYS)} to say what the job does, found {found}")
        profile, total_steps = {
            "step_times_s": self._measured,
            "application": self._from_application,
            "duration_s": self._from_duration,
        }[given[0]](row)
        return SourcedJob(TrueJob(self._spec(row, profile), profile, total_steps), row)

    def _spec(self, row: Row, profile: Profile) -> JobSpec:
        sizes = profile.sizes
        low = row.count("min_workers") if row.has("min_workers") else sizes[0]
        high = row.count("max_workers") if row.has("max_workers") else sizes[-1]
        if low > high:
            raise row.error(f"min_workers {low} is more than max_workers {high}", "min_workers")
        if not any(low <= size <= high for size in sizes):
            known = ", ".join(map(str, sizes))
            raise row.error(f"the job's profile has no size from {low} to {high}: expected one of {known}")
        requested = row.count("workers") if row.has("workers") else max(s for s in sizes if s <= high)
        check_size(row, sizes, requested, "workers")
        if not low <= requested <= high:
            raise row.error(f"workers is {requested}: expected {low} to {high}, as in the same row", "workers")
        return job_spec(
            row,
            lambda: JobSpec(
                row.text("name"),
                row.non_negative("submitted_s"),
                min_workers=low,
                max_workers=high,
                requested_workers=requested,
                sizes=sizes,
                user=row.cells.get("user", ""),
                weight=_weight(row) if row.has("weight") else 1.0,
                priority=row.integer("priority") if row.has("priority") else 0,
                may_share=_yes_or_no(row, "may_share", default=True),
            ),
        )

    def _measured(self, row: Row) -> tuple[Profile, float]:
        key = (row.cells["step_times_s"], row.cells.get("exposed_s", ""))
        if key not in self._tables:
            step_s = _by_size(row, "step_times_s")
            exposed_s = _by_size(row, "exposed_s") if row.has("exposed_s") else {}
            for size, wait_s in exposed_s.items():
                if size not in step_s:
                    raise row.error(f"exposed_s has {size} workers, step_times_s does not", "exposed_s")
                if wait_s > step_s[size]:
                    limit = f"expected at most the step of {step_s[size]} s"
                    raise row.error(f"exposed_s at {size} workers is {wait_s}: {limit}", "exposed_s")
            if any(value <= 0 for value in step_s.values()):
                raise row.error("step_times_s has a 0: expected numbers above 0", "step_times_s")
            self._tables[key] = TableProfile({n: StepTime(s, exposed_s.get(n, 0.0)) for n, s in step_s.items()})
        return self._tables[key], self._steps(row)

    def _from_application(self, row: Row) -> tuple[Profile, float]:
        if self._applications is None:
            raise row.error(
                f"job {row.text('name')} uses the application {row.text('application')!r}, but there is no profiles "
                "folder next to the workload: give --profiles DIR",
                "application",
            )
        if not row.has("batch_size"):
            raise row.error("application without batch_size: expected the global batch size")
        profile, total = self._applications.behavior(row, row.text("application"), row.count("batch_size"))
        if total is None or row.has("steps"):
            total = self._steps(row)
        return profile, total

    def _from_duration(self, row: Row) -> tuple[Profile, float]:
        if not row.has("workers"):
            raise row.error("duration_s without workers: expected the size at which it took that long")
        workers = row.count("workers")
        low = row.count("min_workers") if row.has("min_workers") else workers
        high = row.count("max_workers") if row.has("max_workers") else workers
        if not low <= workers <= high:
            raise row.error(f"workers is {workers}: expected {low} to {high}, as in the same row", "workers")
        return assumed_profile(workers, doubling_sizes(low, high, low, workers, high)), row.positive("duration_s")

    @staticmethod
    def _steps(row: Row) -> float:
        if not row.has("steps"):
            raise row.error("steps is missing: expected the number of training steps")
        return row.positive("steps")


def _by_size(row: Row, column: str) -> dict[int, float]:
    """``1:0.5 2:0.3`` as a mapping."""
    values: dict[int, float] = {}
    for part in row.text(column).split():
        size_text, colon, value_text = part.partition(":")
        if not (colon and size_text.isdecimal() and int(size_text) > 0):
            raise row.error(f"{column} has {part!r}: expected WORKERS:SECONDS, like 4:0.15", column)
        cell = Row({column: value_text}, row.file, row.line, row.cell_lines)
        if int(size_text) in values:
            raise row.error(f"{column} has {size_text} workers twice: remove one", column)
        values[int(size_text)] = cell.non_negative(column)
    return values


def _weight(row: Row) -> float:
    weight = row.positive("weight")
    if not 1 / MAX_WEIGHT <= weight <= MAX_WEIGHT:
        raise row.error(f"weight is {row.cells['weight']}: expected {1 / MAX_WEIGHT:g} to {MAX_WEIGHT:g}", "weight")
    return weight


def _yes_or_no(row: Row, column: str, *, default: bool) -> bool:
    if not row.has(column):
        return default
    text = row.cells[column].lower()
    if text not in ("yes", "no", "true", "false"):
        raise row.error(f"{column} is {row.cells[column]!r}: expected yes or no", column)
    return text in ("yes", "true")


BY_SIZE = ("step_times_s", "exposed_s")


def yaml_rows(text: str, file: str) -> tuple[list[Row], dict[str, int]]:
    """The jobs as rows, and the quotas by user."""
    document = compose(text, file, when_too_large="use CSV for long queues")
    if document is None:
        raise InputError("the file is empty: expected `jobs:` with a list", file=file, line=1)
    top = mapping(document, file, ("jobs", "quotas"), "the file")
    jobs = top.get("jobs")
    if not isinstance(jobs, yaml.SequenceNode):
        raise InputError("expected `jobs:` with a list of jobs", file=file, line=line_of(jobs or document))
    return [_yaml_row(node, file) for node in jobs.value], _quotas(top.get("quotas"), file)


def _yaml_row(node: yaml.Node, file: str) -> Row:
    values = mapping(node, file, (*REQUIRED, *OPTIONAL), "a job")
    line = line_of(node)
    for name in REQUIRED:
        if name not in values:
            raise InputError(f"the job has no {name!r}: add it", file=file, line=line)
    lines = {name: line_of(value) for name, value in values.items()}
    return Row({name: _cell(name, value, file) for name, value in values.items()}, file, line, lines)


def _cell(name: str, node: yaml.Node, file: str) -> str:
    if name in BY_SIZE and isinstance(node, yaml.MappingNode):
        pairs = mapping(node, file, None, name)
        return " ".join(f"{size}:{scalar(value, file, name)}" for size, value in pairs.items())
    return scalar(node, file, name)


def _quotas(node: yaml.Node | None, file: str) -> dict[str, int]:
    if node is None:
        return {}
    quotas = {}
    for user, value in mapping(node, file, None, "quotas").items():
        quotas[user] = Row({"quota": scalar(value, file, "quotas")}, file, line_of(value)).count("quota", at_least=0)
    return quotas
