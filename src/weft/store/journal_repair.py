"""A new journal from the copy and from whatever can still be read of a damaged one.

Run by ``weft repair`` while no controller is running.  The damaged file is kept.  Every readable event goes into the
new journal, even those after an unreadable one: an acknowledged job matters more than a history without gaps, and the
reducer accepts any sequence.
"""

from __future__ import annotations

import os
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from weft.core.plural import plural
from weft.errors import StoreError
from weft.store import copy, database, mark, schema
from weft.store.salvage import Row, salvaged_rows


@dataclass(frozen=True, slots=True)
class Repaired:
    """The result of a repair."""

    kept_as: Path | None
    """The damaged file; None if it was gone."""
    snapshot_seq: int
    num_events: int
    missing: tuple[int, ...]
    """Numbers of events after the snapshot that could not be read although later ones could."""

    def __str__(self) -> str:
        words = f"recovered the state after event {self.snapshot_seq} and {plural(self.num_events, 'event')} after it"
        if self.missing:
            words += f"; events {', '.join(map(str, self.missing))} could not be read"
        if self.kept_as is not None:
            words += f"; the damaged file is now {self.kept_as}"
        return f"{words}. Continue with `weft up`; then `weft status` lists the recovered jobs"


def repair(path: Path) -> Repaired:
    """Replace the damaged journal with a new one."""
    if database.holders(path):
        raise StoreError(f"{path} is in use: run `weft down` first")
    snapshots, events = salvaged_rows(path)
    kept = copy.read(path)
    # If both have the same number, the journal's own wins: it is written before the copy.
    newest = max([*snapshots, *([kept] if kept is not None else [])], default=None, key=lambda row: row[0])
    if newest is None and not events:
        raise StoreError(
            f"nothing can be read from {path} or its copy, and nothing was changed. Restore a backup, or move the file "
            "away to start with an empty queue; `ps` shows workers that are still running"
        )
    base = 0 if newest is None else newest[0]
    after = {seq for seq, _, _ in events if seq > base}
    missing = sorted(set(range(base + 1, max(after, default=base) + 1)) - after)
    aside = path.with_name(path.name + ".repaired")
    _write(aside, newest, events)
    kept_as = _put_aside(path)
    os.replace(aside, path)
    return Repaired(kept_as if kept_as.exists() else None, base, len(after), tuple(missing))


def _write(aside: Path, snapshot: Row | None, events: list[Row]) -> None:
    aside.unlink(missing_ok=True)
    with database.in_words(aside, "writing"), closing(database.connect(aside)) as connection:
        schema.migrate(connection, aside)
        with database.transaction(connection):
            if snapshot is not None:
                connection.execute("INSERT INTO snapshots (seq, body, crc32) VALUES (?, ?, ?)", snapshot)
            connection.executemany("INSERT INTO events (seq, body, crc32) VALUES (?, ?, ?)", events)


def _put_aside(path: Path) -> Path:
    """Keep the damaged file.  Move its log too, even if the file is gone: SQLite would take it for the new file's."""
    kept_as = copy.unused_name(path, "damaged")
    if path.exists():
        os.link(path, kept_as)  # a link, so that the journal's name always exists
    for suffix in ("-wal", "-shm"):
        if Path(f"{path}{suffix}").exists():
            os.replace(f"{path}{suffix}", f"{kept_as}{suffix}")
    mark.place(path).unlink(missing_ok=True)
    return kept_as
