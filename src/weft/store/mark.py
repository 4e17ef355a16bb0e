"""The number of the newest event, in a separate file next to the journal: a journal that ends earlier has lost events.

Written after every commit, in place and without waiting for the disk.  So after a power loss it can be behind, and
detects less; it is never ahead, so it never rejects a complete journal.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from weft.store import database

_DIGITS = 20


class Mark:
    """The mark of one journal."""

    def __init__(self, path: Path) -> None:
        self._path = place(path)
        self._file: int | None = None

    def read(self) -> int:
        """The number; 0 if there is none."""
        try:
            text = self._path.read_bytes()[:_DIGITS]
        except OSError:
            return 0
        return int(text) if text.isdigit() else 0

    def write(self, seq: int) -> None:
        with contextlib.suppress(OSError):  # without the mark, a loss may go undetected
            if self._file is None:
                database.make_private(self._path)
                self._file = os.open(self._path, os.O_WRONLY | os.O_CLOEXEC)
            os.pwrite(self._file, b"%020d" % seq, 0)

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None


def place(path: Path) -> Path:
    """Where the mark of a journal is kept."""
    return path.with_name(path.name + ".mark")
