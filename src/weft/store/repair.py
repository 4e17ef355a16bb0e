"""A new journal from the copy and from whatever can still be read of a damaged one.

    python -m weft.store.repair HOME/journal.db

Started by hand, while no controller runs.  The damaged file is kept.  Every event that can be read goes into the new
journal, also those behind one that cannot: an acknowledged job is worth more than a history without gaps, and the
reducer takes any sequence.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import sys
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from weft.errors import StoreError, WeftError
from weft.store import copy, database, schema

MOST_MISSING = 10_000
"""So many events in a row that cannot be found: there are no more."""

Row = tuple[int, bytes | str, int | None]


@dataclass(frozen=True, slots=True)
class Repaired:
    """What became of a damaged journal."""

    kept_as: Path | None
    """The damaged file; None when it was gone."""
    snapshot_seq: int
    num_events: int
    missing: tuple[int, ...]
    """Numbers of events after the snapshot that could not be read, though later ones could."""

    def __str__(self) -> str:
        words = f"the state after event {self.snapshot_seq} and {self.num_events} events after it were saved"
        if self.missing:
            words += f"; events {', '.join(map(str, self.missing))} could not be read"
        if self.kept_as is not None:
            words += f"; the damaged file is now {self.kept_as}"
        return f"{words}. `weft up` goes on from here; `weft status` shows which jobs there are"


def repair(path: Path) -> Repaired:
    """Put a new journal in the place of the damaged one."""
    if database.holders(path):
        raise StoreError(f"{path} is in use: `weft down` first")
    snapshots, events = _salvaged(path)
    kept = copy.read(path)
    snapshots += [kept] if kept is not None else []
    intact = [
        (seq, body, crc32) for seq, body, crc32 in snapshots if crc32 is None or zlib.crc32(_bytes(body)) == crc32
    ]
    if not intact and not events:
        raise StoreError(
            f"nothing can be read of {path}, and there is no copy: it was left as it is. Look into your backups, or "
            "move it away to start with an empty queue; workers that still run are found with `ps`"
        )
    newest = max(intact, default=None, key=lambda row: row[0])
    base = 0 if newest is None else newest[0]
    after = [seq for seq, _, _ in events if seq > base]
    missing = sorted(set(range(base + 1, max(after, default=base) + 1)) - set(after))
    aside = path.with_name(path.name + ".repaired")
    _write(aside, newest, events)
    kept_as = _put_aside(path) if path.exists() else None
    os.replace(aside, path)
    return Repaired(kept_as, base, len(after), tuple(missing))


def _salvaged(path: Path) -> tuple[list[Row], list[Row]]:
    """Snapshots and events that can be read, from a second copy: reading alone may change a file of SQLite."""
    if not path.exists():
        return [], []
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        for suffix in ("", "-wal"):
            if Path(f"{path}{suffix}").exists():
                shutil.copy(f"{path}{suffix}", Path(folder, f"journal{suffix}"))
        with closing(sqlite3.connect(Path(folder, "journal"), isolation_level=None)) as connection:
            return list(_rows(connection, "snapshots")), list(_rows(connection, "events"))


def _rows(connection: sqlite3.Connection, table: str) -> Iterator[Row]:
    """One look-up per row: a broken page costs the rows on it and no others."""
    seq, num_missing = _first(connection, table), 0
    while num_missing < MOST_MISSING:
        try:
            found = connection.execute(f"SELECT body, crc32 FROM {table} WHERE seq = ?", (seq,)).fetchone()
            following = connection.execute(f"SELECT min(seq) FROM {table} WHERE seq > ?", (seq,)).fetchone()[0]
        except (sqlite3.DatabaseError, UnicodeDecodeError):
            found, following = None, seq + 1
        if found is not None and (found[1] is None or zlib.crc32(_bytes(found[0])) == found[1]):
            num_missing = 0
            yield seq, found[0], found[1]
        else:
            num_missing += 1
        if following is None:
            return
        seq = following


def _first(connection: sqlite3.Connection, table: str) -> int:
    try:
        return int(connection.execute(f"SELECT min(seq) FROM {table}").fetchone()[0] or 1)
    except sqlite3.DatabaseError:
        return 1


def _write(aside: Path, snapshot: Row | None, events: list[Row]) -> None:
    aside.unlink(missing_ok=True)
    with database.in_words(aside, "writing"), closing(database.connect(aside)) as connection:
        schema.migrate(connection, aside)
        with database.transaction(connection):
            if snapshot is not None:
                connection.execute("INSERT INTO snapshots (seq, body, crc32) VALUES (?, ?, ?)", snapshot)
            connection.executemany("INSERT INTO events (seq, body, crc32) VALUES (?, ?, ?)", events)


def _put_aside(path: Path) -> Path:
    number = 1
    while (kept_as := path.with_name(f"{path.name}.damaged-{number}")).exists():
        number += 1
    os.link(path, kept_as)  # the journal's name is never without a file
    for suffix in ("-wal", "-shm"):
        if Path(f"{path}{suffix}").exists():
            os.replace(f"{path}{suffix}", f"{kept_as}{suffix}")
    return kept_as


def _bytes(body: bytes | str) -> bytes:
    return body.encode() if isinstance(body, str) else bytes(body)


def main(arguments: list[str]) -> int:
    if len(arguments) != 1:
        print("usage: python -m weft.store.repair JOURNAL", file=sys.stderr)
        return 2
    try:
        print(repair(Path(arguments[0])))
    except WeftError as error:
        print(f"weft: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
