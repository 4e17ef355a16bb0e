"""Profiles by device kind: ``DIR/KIND/APP/placements.csv`` or ``DIR/KIND/APP.csv``.

Applications directly in ``DIR`` have been measured on some unnamed kind; speed factors refer to them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from weft.sim.device_kinds import KindProfile
from weft.sim.readers.application_profiles import Application, ApplicationFolder
from weft.sim.readers.batch_range import BatchRange
from weft.sim.readers.tables import Row


@dataclass(frozen=True, eq=False)
class KindApplication:
    """An application that was measured on several device kinds."""

    name: str
    by_kind: Mapping[str, Application]
    own: Application | None

    @property
    def _all(self) -> list[Application]:
        return [*([self.own] if self.own else []), *self.by_kind.values()]

    @property
    def batch_sizes(self) -> tuple[int, ...]:
        return tuple(sorted(set.intersection(*(set(one.batch_sizes) for one in self._all))))

    def check_batch_size(self, batch_size: int) -> None:
        for one in self._all:
            one.check_batch_size(batch_size)

    def profile(self, batch_size: int) -> KindProfile:
        own = self.own.profile(batch_size) if self.own else None
        return KindProfile({kind: one.profile(batch_size) for kind, one in self.by_kind.items()}, own)

    def total_steps(self, batch_size: int) -> float | None:
        """Steps of a complete training run: the same on every kind."""
        return next((steps for one in self._all if (steps := one.total_steps(batch_size)) is not None), None)


class KindFolder(ApplicationFolder):
    """A folder of profiles with a subfolder for some or all of ``kinds``."""

    def __init__(self, folder: Path, kinds: Sequence[str]) -> None:
        super().__init__(folder)
        self._folders = {
            kind: ApplicationFolder(folder / kind)
            for kind in kinds
            if (folder / kind).is_dir() and not (folder / kind / "placements.csv").exists()
        }
        self._measured: dict[str, KindApplication] = {}

    def names(self) -> list[str]:
        return sorted({*super().names(), *(name for folder in self._folders.values() for name in folder.names())})

    def application(self, name: str) -> Application:
        if not self._folders or name not in self.names():
            return super().application(name)
        if name not in self._measured:
            own = super().application(name) if name in super().names() else None
            by_kind = {kind: folder.application(name) for kind, folder in self._folders.items()}
            self._measured[name] = KindApplication(name, by_kind, own)
        return self._measured[name]

    def batch_range(self, row: Row, name: str) -> BatchRange:
        if self._folders:
            raise row.error("--adapt-batch does not work with profiles by device kind: give speeds with --kind-speed")
        return super().batch_range(row, name)
