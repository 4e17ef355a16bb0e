"""The fifo by which keepers say that there is news, and what keeps them waiting."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path


class Nudges:
    """The engine's end.  Each line is the name of an order, a tab, and what is wrong with it, if anything is."""

    def __init__(self, path: Path) -> None:
        if path.exists() and not path.is_fifo():
            path.unlink()
        with contextlib.suppress(FileExistsError):
            os.mkfifo(path, 0o600)
        # Read and write: so it never reads as ended when the last keeper is gone, and we can nudge ourselves.
        self._file = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)

    def fileno(self) -> int:
        return self._file

    def add(self, name: str) -> None:
        """As if a keeper had news of this order."""
        with contextlib.suppress(BlockingIOError):  # full: there is something to read already
            os.write(self._file, f"{name}\t\n".encode())

    def read(self) -> Iterator[tuple[str, str]]:
        """Names and troubles that are waiting."""
        for line in os.read(self._file, 1 << 16).decode(errors="replace").split("\n"):
            name, _, trouble = line.partition("\t")
            yield name, trouble

    def close(self) -> None:
        os.close(self._file)
