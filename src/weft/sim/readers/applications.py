"""A folder of application profiles, in either format, each read when a job first names it."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from weft.core.nearest_name import unknown_name
from weft.errors import InputError, UsageError
from weft.sim.readers.pollux_profile import read_pollux_application
from weft.sim.readers.speed_tables import read_speed_table
from weft.sim.readers.tables import Row
from weft.sim.workload import Profile


class Application(Protocol):
    """A training program that was measured at several batch sizes."""

    @property
    def name(self) -> str: ...

    @property
    def batch_sizes(self) -> tuple[int, ...]: ...

    def check_batch_size(self, batch_size: int) -> None:
        """Raise :class:`UsageError` for a batch size without measurements."""

    def profile(self, batch_size: int) -> Profile: ...

    def total_steps(self, batch_size: int) -> float | None:
        """Steps of a whole training, where the profile knows it."""


class ApplicationFolder:
    """``APP/placements.csv`` (Pollux) or ``APP.csv`` (speed table) for every application."""

    def __init__(self, folder: Path) -> None:
        if not folder.is_dir():
            raise InputError("there is no such folder of profiles: name one with --profiles DIR", file=str(folder))
        self.folder = folder
        self._applications: dict[str, Application] = {}
        self._profiles: dict[tuple[str, int], tuple[Profile, float | None]] = {}

    def names(self) -> list[str]:
        folders = {path.parent.name for path in self.folder.glob("*/placements.csv")}
        return sorted(folders | {path.stem for path in self.folder.glob("*.csv")})

    def application(self, name: str) -> Application:
        if name not in self._applications:
            known = self.names()
            if not known:
                raise UsageError(f"the folder {self.folder} holds no profiles: expected NAME/placements.csv")
            if name not in known:
                raise UsageError(f"{unknown_name('profile of application', name, known)} in {self.folder}")
            folder = self.folder / name
            self._applications[name] = (
                read_pollux_application(folder)
                if folder.is_dir()
                else read_speed_table(folder.with_name(f"{name}.csv"))
            )
        return self._applications[name]

    def behaviour(self, row: Row, name: str, batch_size: int) -> tuple[Profile, float | None]:
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
