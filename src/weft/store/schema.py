"""Tables of the journal, their version, and migrations."""

from __future__ import annotations

import sqlite3
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path

from weft.errors import StoreError
from weft.store.database import transaction

Migration = Callable[[sqlite3.Connection], None]


def _first_tables(connection: sqlite3.Connection) -> None:
    connection.execute("CREATE TABLE events (seq INTEGER PRIMARY KEY, body TEXT NOT NULL) STRICT")
    connection.execute("CREATE TABLE snapshots (seq INTEGER PRIMARY KEY, body BLOB NOT NULL) STRICT")


def _checksums(connection: sqlite3.Connection) -> None:
    """Version 2 detects a wrong byte inside a value; SQLite itself detects only a broken page."""
    for table in ("events", "snapshots"):
        connection.execute(f"ALTER TABLE {table} ADD COLUMN crc32 INTEGER")


def _numbers_in_checksums(connection: sqlite3.Connection) -> None:
    """Version 3: the checksum includes the row's number, so that a row moved by damage is detected, too."""
    for table in ("events", "snapshots"):
        rows = connection.execute(f"SELECT seq, body, crc32 FROM {table}").fetchall()
        intact = [(seq, body) for seq, body, crc32 in rows if crc32 is None or crc32 == zlib.crc32(_bytes(body))]
        changes = [(checksum(seq, body), seq) for seq, body in intact]
        connection.executemany(f"UPDATE {table} SET crc32 = ? WHERE seq = ?", changes)


MIGRATIONS: Sequence[Migration] = (_first_tables, _checksums, _numbers_in_checksums)
"""The n-th one turns version n - 1 into version n.  Append only: never change one that was released."""


def checksum(seq: int, body: bytes | str) -> int:
    """Of one row, including its number."""
    return zlib.crc32(_bytes(body), zlib.crc32(b"%d:" % seq))


def is_intact(seq: int, body: bytes | str, crc32: int | None) -> bool:
    """Whether this row was written with this number; ``False`` also for a row without a checksum."""
    return crc32 == checksum(seq, body)


def _bytes(body: bytes | str) -> bytes:
    return body.encode() if isinstance(body, str) else bytes(body)


def version(connection: sqlite3.Connection) -> int:
    """The version of the tables in this file; 0 for an empty one."""
    found = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND name = 'schema'").fetchone()
    if found is None:
        return 0
    row = connection.execute("SELECT version FROM schema").fetchone()
    return 0 if row is None else int(row[0])


def migrate(connection: sqlite3.Connection, path: Path, migrations: Sequence[Migration] = MIGRATIONS) -> None:
    """Bring the tables to the newest version, in one transaction."""
    present, newest = version(connection), len(migrations)
    if present > newest:
        raise StoreError(
            f"{path} was written by a newer weft (schema {present}; this one supports up to {newest}) and was not "
            "changed. Use the newer weft, or another WEFT_HOME"
        )
    if present == newest:
        return
    with transaction(connection):
        if present == 0:
            connection.execute("CREATE TABLE IF NOT EXISTS schema (version INTEGER NOT NULL) STRICT")
            connection.execute("INSERT INTO schema VALUES (0)")
        for step in migrations[present:]:
            step(connection)
        connection.execute("UPDATE schema SET version = ?", (newest,))
