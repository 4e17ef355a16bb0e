"""The journal: every event in order, and snapshots so that few of them need replaying.

An event is durable when ``append`` returns: only then may it be acknowledged.  Events appended together cost one disk
write.
"""

from __future__ import annotations

import json
import threading
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Self

from weft.control.codec import CodecError, event_from_json, event_to_json, state_from_json, state_to_json
from weft.control.state import State
from weft.core.events import Event
from weft.errors import StoreError
from weft.process.failpoints import failpoint
from weft.store import copy, database, schema
from weft.store.mark import Mark

NUM_KEPT_SNAPSHOTS = 2
NUM_KEPT_EVENTS = 100_000
READ_ROWS = 1000
REMEDY = (
    "Nothing was changed, and workers keep running. `weft repair` builds a journal from everything that can still be "
    "read; `weft up --accept-loss` continues without the rest"
)


class Journal:
    """One file; thread-safe."""

    def __init__(
        self,
        path: str | Path,
        *,
        create: bool = True,
        num_kept_events: int = NUM_KEPT_EVENTS,
        accept_loss: bool = False,
    ) -> None:
        """Open and check the journal; ``create`` makes an empty one if there is none.

        ``num_kept_events``: how many events to keep as history once a snapshot has made them unnecessary; progress
        reports are not kept.  ``accept_loss``: accept it even if it lacks events that it is known to have had.
        """
        self.path = path = Path(path)
        self._mark = Mark(path)
        self._num_kept_events = num_kept_events
        self.loaded_seq = 0
        """The event after which the loaded snapshot was taken."""
        self._thinned_seq = 0
        """Up to here, only events that history needs are left."""
        self._lock = threading.Lock()
        if not path.exists():
            _prepare(path, create=create, accept_loss=accept_loss)
        elif not accept_loss and not path.stat().st_size and self._mark.read():
            raise StoreError(f"{path} is empty but had {self._mark.read()} events: it was truncated. {REMEDY}")
        with database.in_words(path, "opening"):
            self._connection = database.connect(path)
        try:
            with database.in_words(path, "opening"):
                database.check_whole(self._connection)
                if not accept_loss:
                    self._check_not_shortened()
                schema.migrate(self._connection, path)
                self._seq = self._newest("SELECT max(seq) FROM events")
                self._snapshot_seq = self._newest("SELECT max(seq) FROM snapshots")
                self._seq = max(self._seq, self._snapshot_seq)
            self._mark.write(self._seq)
        except BaseException:
            self._connection.close()
            raise

    @property
    def seq(self) -> int:
        """Number of the newest event.  Events are numbered from 1; history that was dropped leaves gaps."""
        return self._seq

    @property
    def num_events_since_snapshot(self) -> int:
        """How many events ``load`` would return for replay."""
        return self._seq - self._snapshot_seq

    def append(self, events: Sequence[Event]) -> int:
        """Write the events durably in one transaction.  Returns the number of the last one."""
        bodies = [_packed(event_to_json(event)) for event in events]
        with self._lock, database.in_words(self.path, "writing to"):
            if not bodies:
                return self._seq
            last = self._seq + len(bodies)
            rows = [(seq, body, schema.checksum(seq, body)) for seq, body in enumerate(bodies, self._seq + 1)]
            with database.transaction(self._connection):
                self._connection.executemany("INSERT INTO events (seq, body, crc32) VALUES (?, ?, ?)", rows)
                failpoint("journal.before_commit")
            failpoint("journal.after_commit")
            self._seq = last
            self._mark.write(last)
            return last

    def read(self, after: int = 0) -> Iterator[tuple[int, Event]]:
        """Events numbered above ``after``, oldest first, without those dropped from history."""
        while True:
            with self._lock, database.in_words(self.path, "reading"):
                rows = self._connection.execute(
                    "SELECT seq, body, crc32 FROM events WHERE seq > ? ORDER BY seq LIMIT ?", (after, READ_ROWS)
                ).fetchall()
            if not rows:
                return
            for seq, body, crc32 in rows:
                if not schema.is_intact(seq, body, crc32):
                    raise _damaged(self.path, f"event {seq} does not match its checksum")
                yield seq, self._event(seq, body)
            after = rows[-1][0]

    def _event(self, seq: int, body: str) -> Event:
        try:
            return event_from_json(json.loads(body))
        except CodecError as error:
            raise CodecError(
                f"event {seq} of {self.path} is intact, but this weft cannot read it ({error}). Nothing was changed, "
                "and workers keep running: use the weft that wrote it, or a newer one"
            ) from error

    def save_snapshot(self, seq: int, state: State) -> None:
        """Save the state after event ``seq``, here and in the journal's copy."""
        body = zlib.compress(_packed(state_to_json(state)).encode(), level=1)
        with self._lock, database.in_words(self.path, "writing to"):
            if seq > self._seq:
                raise StoreError(f"snapshot after event {seq}, but the journal ends with {self._seq}: append first")
            row = (seq, body, schema.checksum(seq, body))
            with database.transaction(self._connection):
                self._connection.execute("INSERT OR REPLACE INTO snapshots (seq, body, crc32) VALUES (?, ?, ?)", row)
                self._drop_history()
                failpoint("snapshot.before_commit")
            failpoint("snapshot.after_commit")
            self._snapshot_seq = max(self._snapshot_seq, seq)
        copy.write(self.path, row)

    def compact(self, before_s: float) -> None:
        """Drop history before ``before_s`` that the newest snapshot makes unnecessary, and free the space.

        If the process is killed at any point, each step is either complete or undone, thanks to SQLite's transactions.
        """
        with self._lock, database.in_words(self.path, "compacting"):
            with database.transaction(self._connection):
                newest = self._newest("SELECT max(seq) FROM snapshots")
                self._connection.execute("DELETE FROM snapshots WHERE seq < ?", (newest,))
                self._connection.execute(
                    "DELETE FROM events WHERE seq <= ? AND json_extract(body, '$.at_s') < ?", (newest, before_s)
                )
                failpoint("compact.before_commit")
            failpoint("compact.after_commit")
            self._connection.execute("VACUUM")
            failpoint("compact.after_vacuum")
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def load(self) -> tuple[State | None, int, list[tuple[int, Event]]]:
        """The newest intact snapshot, the number of the event it was taken after, and the events since then."""
        with self._lock, database.in_words(self.path, "reading"):
            rows = self._connection.execute("SELECT seq, body, crc32 FROM snapshots ORDER BY seq DESC").fetchall()
        for seq, body, crc32 in rows:
            if schema.is_intact(seq, body, crc32):  # if not, use the one before it, with all events since
                self.loaded_seq = seq
                return unpacked_state(body), seq, list(self.read(after=seq))
        if rows:
            raise _damaged(self.path, "no snapshot matches its checksum")
        return None, 0, list(self.read())

    def close(self) -> None:
        with self._lock:
            self._mark.close()
            self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _check_not_shortened(self) -> None:
        """Before anything is written, check that it still has the events it is known to have had."""
        tables = ("events", "snapshots") if schema.version(self._connection) else ()
        seq = max([self._newest(f"SELECT max(seq) FROM {table}") for table in tables], default=0)
        marked = self._mark.read()
        if seq < marked:
            raise StoreError(
                f"{self.path} ends with event {seq}, but {marked} events had been written: it was restored from a "
                f"backup, or its log ({self.path.name}-wal) is gone. {REMEDY}"
            )

    def _newest(self, query: str) -> int:
        return int(self._connection.execute(query).fetchone()[0] or 0)

    def _drop_history(self) -> None:
        """Delete old snapshots, and old events that no kept snapshot needs for a replay."""
        kept = self._connection.execute(
            "SELECT seq FROM snapshots ORDER BY seq DESC LIMIT ?", (NUM_KEPT_SNAPSHOTS,)
        ).fetchall()
        oldest = kept[-1][0]
        self._connection.execute("DELETE FROM snapshots WHERE seq < ?", (oldest,))
        # Progress is most of the journal, and the job's own history has all that it says about the past.
        self._connection.execute(
            "DELETE FROM events WHERE seq > ? AND seq <= ? AND json_extract(body, '$.event') = 'ProgressReported'",
            (self._thinned_seq, oldest),
        )
        self._thinned_seq = oldest
        beyond = self._connection.execute(
            "SELECT seq FROM events WHERE seq <= ? ORDER BY seq DESC LIMIT 1 OFFSET ?", (oldest, self._num_kept_events)
        ).fetchone()
        if beyond is not None:
            self._connection.execute("DELETE FROM events WHERE seq <= ?", beyond)


def _damaged(path: Path, how: str) -> StoreError:
    return StoreError(database.DAMAGED.format(path=path, how=how))


def unpacked_state(body: bytes) -> State:
    """The state in a snapshot."""
    return state_from_json(json.loads(zlib.decompress(body)))


def _packed(document: Any) -> str:
    return json.dumps(document, separators=(",", ":"))


def _prepare(path: Path, *, create: bool, accept_loss: bool) -> None:
    """Create the folder for a new journal, unless an old journal is missing."""
    if not create:
        raise StoreError(
            f"there is no journal at {path}: `weft up` creates one; or should WEFT_HOME be another folder?"
        )
    if copy.place(path).exists() and not accept_loss:
        raise StoreError(
            f"{path} is gone, but its copy {copy.place(path).name} exists: an empty journal would lose the jobs. "
            f"{REMEDY}"
        )
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise StoreError(
            f"{path.parent} cannot be created ({error.strerror}): choose a WEFT_HOME you can write to"
        ) from error
