"""The last good state in a file of its own beside the journal, for the day the journal cannot be read.

One snapshot in the journal's own tables, written aside and renamed: whole or absent.  It costs as much as the
snapshot it repeats, and it is never open while the controller works, so what damages the journal leaves it alone.
"""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

from weft.core.failpoints import failpoint
from weft.store import database, schema


def place(path: Path) -> Path:
    """Where the copy of a journal is kept."""
    return path.with_name(path.name + ".copy")


def write(path: Path, snapshot: tuple[int, bytes, int]) -> None:
    """Replace the copy by one that holds this snapshot (event number, body, checksum)."""
    aside = path.with_name(path.name + ".copy-aside")
    aside.unlink(missing_ok=True)
    with database.in_words(aside, "writing"):
        connection = sqlite3.connect(aside, isolation_level=None)
        try:
            connection.execute("PRAGMA journal_mode = MEMORY")  # one file: what is half written is thrown away
            connection.execute("PRAGMA synchronous = FULL")
            schema.migrate(connection, aside)
            connection.execute("INSERT INTO snapshots (seq, body, crc32) VALUES (?, ?, ?)", snapshot)
        finally:
            connection.close()
    failpoint("backup.before_rename")
    os.replace(aside, place(path))
    failpoint("backup.after_rename")
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def read(path: Path) -> tuple[int, bytes, int] | None:
    """The snapshot in the copy, if there is a copy and it can be read."""
    if not place(path).exists():
        return None
    with database.in_words(place(path), "reading"):
        connection = sqlite3.connect(f"{place(path).absolute().as_uri()}?mode=ro", uri=True)
        try:
            row = connection.execute("SELECT seq, body, crc32 FROM snapshots ORDER BY seq DESC LIMIT 1").fetchone()
        finally:
            connection.close()
    return None if row is None else (int(row[0]), bytes(row[1]), int(row[2]))
