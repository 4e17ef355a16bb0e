"""The last good state, in a separate file next to the journal, for when the journal cannot be read.

It has the journal's tables with one snapshot.  It is written under a temporary name and renamed, so it is complete or
absent.  The controller never keeps it open, so damage to the journal does not affect it.
"""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

from weft.process.failpoints import failpoint
from weft.process.folder_sync import sync_folder
from weft.store import database, schema
from weft.store.salvage import salvaged_rows


def place(path: Path) -> Path:
    """Where the copy of a journal is kept."""
    return path.with_name(path.name + ".copy")


def write(path: Path, snapshot: tuple[int, bytes, int]) -> None:
    """Replace the copy with one that has this snapshot (event number, body, checksum)."""
    aside = path.with_name(path.name + ".copy-aside")
    aside.unlink(missing_ok=True)
    database.make_private(aside)
    with database.in_words(aside, "writing"):
        connection = sqlite3.connect(aside, isolation_level=None)
        try:
            connection.execute("PRAGMA journal_mode = MEMORY")  # no second file: a half-written copy is discarded
            connection.execute("PRAGMA synchronous = FULL")
            schema.migrate(connection, aside)
            connection.execute("INSERT INTO snapshots (seq, body, crc32) VALUES (?, ?, ?)", snapshot)
        finally:
            connection.close()
    failpoint("backup.before_rename")
    os.replace(aside, place(path))
    failpoint("backup.after_rename")
    sync_folder(path.parent)


def read(path: Path) -> tuple[int, bytes, int] | None:
    """The newest intact snapshot in the copy; None if there is none."""
    if not place(path).exists():
        return None
    snapshots, _ = salvaged_rows(place(path))
    intact = [(seq, body, crc32) for seq, body, crc32 in snapshots if isinstance(body, bytes)]
    return max(intact, default=None)


def put_aside(path: Path) -> None:
    """Keep the copy under another name: the journal lacks events that it has, and the user accepted that."""
    if place(path).exists():
        os.replace(place(path), unused_name(place(path), "lost"))


def unused_name(path: Path, word: str) -> Path:
    """``path.word-1``, or the next free number."""
    number = 1
    while (found := path.with_name(f"{path.name}.{word}-{number}")).exists():
        number += 1
    return found
