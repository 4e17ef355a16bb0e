"""Copies of the workers' output on the controller's machine, where `weft logs` reads them.

A copy grows only at its end, and its size says where to continue: nothing else is remembered, so nothing can disagree
with it after a crash on either side.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from weft.engines.regular_file import open_regular

MAX_BYTES_AT_ONCE = 1 << 20


def sizes(folder: Path) -> dict[str, int]:
    """The size of each output file, by name."""
    found = {}
    with contextlib.suppress(OSError):
        for entry in os.scandir(folder):
            if entry.name.startswith("rank") and entry.is_file(follow_symlinks=False):
                found[entry.name] = entry.stat(follow_symlinks=False).st_size
    return found


def news(folder: Path, copied: dict[str, int]) -> list[tuple[str, int, bytes]]:
    """On the node: what the copies lack, as (file, offset, data), at most :data:`MAX_BYTES_AT_ONCE` in total."""
    found, left = [], MAX_BYTES_AT_ONCE
    for name, size in sizes(folder).items():
        offset = copied.get(name)
        # An empty file is copied too: it shows that the worker exists.
        if left > 0 and (offset is None or offset < size):
            with contextlib.suppress(OSError):
                file = open_regular(folder / name)
                try:
                    data = os.pread(file, left, offset or 0)
                finally:
                    os.close(file)
                left -= len(data)
                found.append((name, offset or 0, data))
    return found


def add(folder: Path, name: str, offset: int, data: bytes) -> None:
    """On the controller's machine: append the data, unless it is already there."""
    if not name.startswith("rank") or "/" in name:
        return
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    file = open_regular(folder / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        if os.fstat(file).st_size == offset:
            os.write(file, data)
    finally:
        os.close(file)
