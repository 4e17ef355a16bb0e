"""The disk of the home: how much space is left, and what uses it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from weft.daemon.home import Home

LOW_SHARE = 0.05
LOW_BYTES = 10 << 30
"""Space is low below 5 % of the disk or 10 GiB, whichever is less."""


@dataclass(frozen=True, slots=True)
class Space:
    """Space on a folder's file system."""

    free_bytes: int
    total_bytes: int

    @staticmethod
    def at(folder: Path) -> Space:
        found = os.statvfs(folder)
        return Space(found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize)

    @property
    def is_low(self) -> bool:
        return self.free_bytes < min(LOW_SHARE * self.total_bytes, LOW_BYTES)


def low_in_words(home: Home) -> str:
    """A warning if the disk is nearly full, else ""."""
    try:
        space = Space.at(home.root)
    except OSError:
        return ""
    if not space.is_low:
        return ""
    return (
        f"the disk of {home.root} is nearly full: {in_units(space.free_bytes)} left of {in_units(space.total_bytes)}. "
        "Free some space: `weft purge --older-than 7d --dry-run` shows what can be deleted"
    )


def usage(home: Home) -> dict[str, int]:
    """Bytes on disk by kind: journal, logs, checkpoints, pool."""
    found = dict.fromkeys(("journal", "logs", "checkpoints", "pool"), 0)
    for path, num_bytes in _files(home.root):
        parts = path.relative_to(home.root).parts
        if parts[0].startswith("journal.sqlite"):
            kind = "journal"
        elif parts[0] == "jobs":
            kind = "checkpoints" if len(parts) > 2 and parts[2] == "checkpoints" else "logs"
        else:
            kind = "logs" if parts[0] == "controller.log" else "pool"
        found[kind] += num_bytes
    return found


def size_bytes(folder: Path) -> int:
    """Disk space used by everything below a folder."""
    return sum(num_bytes for _, num_bytes in _files(folder))


def _files(folder: Path) -> Iterator[tuple[Path, int]]:
    """Files and the space they use; does not follow links, and skips files that vanish meanwhile."""
    for parent, _, names in os.walk(folder):
        for path in (Path(parent, name) for name in names):
            with contextlib.suppress(OSError):
                yield path, path.lstat().st_blocks * 512


def in_units(num_bytes: float) -> str:
    """
    >>> in_units(3 << 20)
    '3.0 MiB'
    """
    units = ["bytes", "KiB", "MiB", "GiB", "TiB"]
    while num_bytes >= 1024 and len(units) > 1:
        num_bytes /= 1024
        units.pop(0)
    return f"{num_bytes:.0f} bytes" if units[0] == "bytes" else f"{num_bytes:.1f} {units[0]}"
