"""Tables of the journal, their version, and the way from one version to the next."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path

from weft.errors import StoreError

Migration = Callable[[sqlite3.Connection], None]


def _first_tables(connection: sqlite3.Connection) -> None:
    connection.execute("CREATE TABLE events (seq INTEGER PRIMARY KEY, body TEXT NOT NULL) STRICT")
    connection.execute("CREATE TABLE snapshots (seq INTEGER PRIMARY KEY, body BLOB NOT NULL) STRICT")


def _checksums(connection: sqlite3.Connection) -> None:
    """SQLite finds a broken page, not a broken byte inside a value; version 2 can tell."""
    for table in ("events", "snapshots"):
        connection.execute(f"ALTER TABLE {table} ADD COLUMN crc32 INTEGER")


MIGRATIONS: Sequence[Migration] = (_first_tables, _checksums)
"""The n-th of them makes version n of what version n - 1 was.  Never changed once released: only added to."""

VERSION = len(MIGRATIONS)


def version(connection: sqlite3.Connection) -> int:
    """The version of the tables in this file; 0 for an empty one."""
    found = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND name = 'schema'").fetchone()
    if found is None:
        return 0
    row = connection.execute("SELECT version FROM schema").fetchone()
    return 0 if row is None else int(row[0])


def migrate(connection: sqlite3.Connection, path: Path, migrations: Sequence[Migration] = MIGRATIONS) -> None:
    """Bring the tables to the newest version, in one transaction: all of it or nothing."""
    present, newest = version(connection), len(migrations)
    if present > newest:
        raise StoreError(
            f"{path} was written by a newer weft (schema {present}; this one knows up to {newest}): it was not "
            "touched. Use that weft again, or another WEFT_HOME"
        )
    if present == newest:
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        if present == 0:
            connection.execute("CREATE TABLE IF NOT EXISTS schema (version INTEGER NOT NULL) STRICT")
            connection.execute("INSERT INTO schema VALUES (0)")
        for step in migrations[present:]:
            step(connection)
        connection.execute("UPDATE schema SET version = ?", (newest,))
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
