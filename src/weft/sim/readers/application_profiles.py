"""Application profiles: a folder of them in either format, each read when a job first uses it.

Speed tables are in the ElasticFlow artifact's format, iterations per second by number of devices:

    global_batch_size,1,2,4,8
    64,6.0,8.6,10.4,11.1

One file per application, one row per global batch size; an empty cell, 0 or nan is a size that was not run.  The tables
say neither where the devices are nor how much of a step is exposed communication: the simulator assumes none, so
crossover never helps here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from weft.core.nearest_name import unknown_name
from weft.core.speed import StepTime
from weft.errors import InputError, UsageError
from weft.sim.readers.batch_range import BatchRange
from weft.sim.readers.pollux_profile import PolluxApplication, read_pollux_application
from weft.sim.readers.tables import Row, read_text, table_header, table_rows
from weft.sim.workload import Profile, TableProfile


class Application(Protocol):
    """A training program measured at several batch sizes."""

    @property
    def name(self) -> str: ...

    @property
    def batch_sizes(self) -> tuple[int, ...]: ...

    def check_batch_size(self, batch_size: int) -> None:
        """Raise :class:`UsageError` for a batch size without measurements."""

    def profile(self, batch_size: int) -> Profile: ...

    def total_steps(self, batch_size: int) -> float | None:
        """Steps of a complete training run, if the profile has them."""


class ApplicationFolder:
    """``APP/placements.csv`` (Pollux) or ``APP.csv`` (speed table) for every application."""

    def __init__(self, folder: Path) -> None:
        if not folder.is_dir():
            raise InputError("no such profiles folder: give another one with --profiles DIR", file=str(folder))
        self.folder = folder
        self._applications: dict[str, Application] = {}
        self._profiles: dict[tuple[str, int], tuple[Profile, float | None]] = {}
        self._ranges: dict[str, BatchRange] = {}

    def names(self) -> list[str]:
        folders = {path.parent.name for path in self.folder.glob("*/placements.csv")}
        return sorted(folders | {path.stem for path in self.folder.glob("*.csv")})

    def application(self, name: str) -> Application:
        if name not in self._applications:
            known = self.names()
            if not known:
                raise UsageError(f"the folder {self.folder} has no profiles: expected NAME/placements.csv")
            if name not in known:
                raise UsageError(f"{unknown_name('profile of application', name, known)} in {self.folder}")
            folder = self.folder / name
            self._applications[name] = (
                read_pollux_application(folder)
                if folder.is_dir()
                else read_speed_table(folder.with_name(f"{name}.csv"))
            )
        return self._applications[name]

    def behavior(self, row: Row, name: str, batch_size: int) -> tuple[Profile, float | None]:
        """Profile and total steps for the job in ``row``; the same object for every job of that kind."""
        key = (name, batch_size)
        if key not in self._profiles:
            try:
                application = self.application(name)
                application.check_batch_size(batch_size)
            except InputError:
                raise
            except UsageError as error:
                raise row.error(str(error)) from None
            self._profiles[key] = (application.profile(batch_size), application.total_steps(batch_size))
        return self._profiles[key]

    def batch_range(self, row: Row, name: str) -> BatchRange:
        """The behavior of the job in ``row`` if its batch size may change; one object for each kind of job."""
        if name not in self._ranges:
            application = self.application(name)
            if not isinstance(application, PolluxApplication):
                raise row.error(
                    f"the profile of {name} does not say how its gradient noise depends on the batch size: expected "
                    "validation-B.csv files for a job whose batch size may change; leave --adapt-batch out"
                )
            self._ranges[name] = BatchRange(application)
        return self._ranges[name]


BATCH_COLUMN = "global_batch_size"


@dataclass(frozen=True, eq=False)
class SpeedTable:
    """The measured speeds of one application."""

    name: str
    profiles: Mapping[int, TableProfile]

    @property
    def batch_sizes(self) -> tuple[int, ...]:
        return tuple(sorted(self.profiles))

    def check_batch_size(self, batch_size: int) -> None:
        if batch_size not in self.profiles:
            known = ", ".join(map(str, self.batch_sizes))
            raise UsageError(f"{self.name} has no profile at batch size {batch_size}: expected one of {known}")

    def profile(self, batch_size: int) -> TableProfile:
        return self.profiles[batch_size]

    def total_steps(self, batch_size: int) -> None:
        """Speed tables do not say how long a training run takes: the workload has to."""


def read_speed_table(path: Path) -> SpeedTable:
    text = read_text(path)
    sizes = [name for name in table_header(text, str(path)) if name != BATCH_COLUMN]
    for name in sizes:
        if not name.isdecimal() or int(name) == 0:
            raise InputError(
                f"the column {name!r} is not a number of devices: expected {BATCH_COLUMN},1,2,4,...",
                file=str(path),
                line=1,
            )
    profiles: dict[int, TableProfile] = {}
    for row in table_rows(text, str(path), required=(BATCH_COLUMN,)):
        batch = row.count(BATCH_COLUMN)
        if batch in profiles:
            raise row.error(f"{BATCH_COLUMN} {batch} occurs twice: remove one")
        times = {int(name): StepTime(1.0 / row.positive(name)) for name in sizes if not _was_not_run(row, name)}
        if not times:
            raise row.error("no speed in this row: expected iterations per second for some size")
        profiles[batch] = TableProfile(times)
    if not profiles:
        raise InputError("no speeds: expected one row per global batch size", file=str(path))
    return SpeedTable(path.stem, profiles)


def _was_not_run(row: Row, size: str) -> bool:
    """Empty, 0 or nan: the published tables mark sizes that were not measured in all three ways."""
    return not row.has(size) or row.cells[size].lower() == "nan" or row.number(size, "a number above 0") == 0
