"""Speed tables as the ElasticFlow artifact keeps them: iterations per second by number of devices.

    global_batch_size,1,2,4,8
    64,6.0,8.6,10.4,11.1

One file per application, one row per global batch size.  The tables say neither where the devices sit nor
how much of a step is exposed communication: the simulator takes it as zero, so crossover never gains here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from weft.core.speed import StepTime
from weft.errors import InputError, UsageError
from weft.sim.readers.tables import read_text, table_header, table_rows
from weft.sim.workload import TableProfile

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
        """Speed tables do not say how long a training takes: the workload has to."""


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
            raise row.error(f"{BATCH_COLUMN} {batch} is there twice: remove one")
        # An empty cell is a size nobody measured, for instance because the batch does not fit there.
        times = {int(name): StepTime(1.0 / row.positive(name)) for name in sizes if row.has(name)}
        if not times:
            raise row.error("no speed in this row: expected iterations per second for some size")
        profiles[batch] = TableProfile(times)
    if not profiles:
        raise InputError("no speeds: expected one row per global batch size", file=str(path))
    return SpeedTable(path.stem, profiles)
