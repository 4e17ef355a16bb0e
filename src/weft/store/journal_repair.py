"""A new journal from the copy and from whatever can still be read of a damaged one.

``weft repair``: started by hand, while no controller runs.  The damaged file is kept.  Every event that can be read
goes into the new journal, also those behind one that cannot: an acknowledged job is worth more than a history without
gaps, and the reducer takes any sequence.
"""

from __future__ import annotations

import os
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from weft.errors import StoreError
from weft.store import copy, database, mark, schema
from weft.store.salvage import Row, salvaged_rows


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
    snapshots, events = salvaged_rows(path)
    kept = copy.read(path)
    # At the same number the journal's own comes first: it is written before the copy is.
    newest = max([*snapshots, *([kept] if kept is not None else [])], default=None, key=lambda row: row[0])
    if newest is None and not events:
        raise StoreError(
            f"nothing can be read of {path} or of a copy of it: it was left as it is. Look into your backups, or "
            "move it away to start with an empty queue; workers that still run are found with `ps`"
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
    """Keep the damaged file, and its log even if the file itself is gone: beside a new file it would be read as its."""
    kept_as = copy.unused_name(path, "damaged")
    if path.exists():
        os.link(path, kept_as)  # the journal's name is never without a file
    for suffix in ("-wal", "-shm"):
        if Path(f"{path}{suffix}").exists():
            os.replace(f"{path}{suffix}", f"{kept_as}{suffix}")
    mark.place(path).unlink(missing_ok=True)
    return kept_as
