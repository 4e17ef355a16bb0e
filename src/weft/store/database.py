"""Opening the journal's file: settings, locks, integrity, and error messages.

[Note: one writer]
``locking_mode=EXCLUSIVE`` keeps SQLite's own lock while the file is open, and the kernel releases it when the process
dies, for whatever reason.  So the file itself keeps out a second controller, or a ``sqlite3`` shell that tries to
write; no lock file is needed, which could be stale.  The lock ends when the process closes *any* handle on the file:
nothing else in the controller may open it.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from weft.errors import StoreError

BUSY_S = 2.0
"""How long to wait for another process that holds the file; a controller that was just killed ends much sooner."""

DAMAGED = (
    "{path} is damaged ({how}) and was not changed. Run `weft repair`, which keeps it and builds a new one from the "
    "last good copy and every event that can still be read; then run `weft up` again"
)


def connect(path: Path) -> sqlite3.Connection:
    """A connection that writes durably and exclusively.  Transactions are explicit."""
    make_private(path)
    connection = sqlite3.connect(path, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
    try:
        connection.execute("PRAGMA locking_mode = EXCLUSIVE")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        # Take the lock now: in WAL mode, a connection that only reads would not keep out a second writer.
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("COMMIT")
    except BaseException:
        connection.close()
        raise
    return connection


def make_private(path: Path) -> None:
    """Create the file, readable only by its owner, if it does not exist: jobs' environments contain secrets."""
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        return
    except OSError as error:
        raise StoreError(
            f"{path} cannot be created ({error.strerror}): expected a folder that you can write to, and free disk space"
        ) from error


def check_whole(connection: sqlite3.Connection) -> None:
    """Raise SQLite's own exception if this file is damaged."""
    found = [row[0] for row in connection.execute("PRAGMA quick_check(3)")]
    if found != ["ok"]:
        raise sqlite3.DatabaseError("; ".join(found))


@contextlib.contextmanager
def in_words(path: Path, doing: str) -> Iterator[None]:
    """Turn SQLite's errors into messages that say what to do."""
    try:
        yield
    except sqlite3.Error as error:
        raise _explained(path, doing, error) from error


@contextlib.contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Commit the whole block or none of it; the connection stays usable after a failure."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:  # after some failures, such as a full disk, SQLite has already rolled back
            connection.execute("ROLLBACK")
        raise


def _explained(path: Path, doing: str, error: sqlite3.Error) -> StoreError:
    name = getattr(error, "sqlite_errorname", None) or ""
    if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
        return StoreError(
            f"{path} is in use by {_holders_in_words(path)}: only one controller can write it. "
            "Use that controller (`weft status`), or stop it with `weft down`"
        )
    if name.startswith("SQLITE_FULL") or (name.startswith("SQLITE_IOERR") and _is_nearly_full(path)):
        return StoreError(
            f"{doing} {path}: the disk is full. This was not acknowledged, and earlier events are safe: "
            f"free some space on the disk of {path.parent}, and the controller continues"
        )
    if name.startswith(("SQLITE_CANTOPEN", "SQLITE_READONLY", "SQLITE_PERM", "SQLITE_AUTH")):
        return StoreError(f"{doing} {path} failed ({error}): expected a folder and a file that you can write to")
    if name.startswith("SQLITE_IOERR"):
        return StoreError(
            f"{doing} {path} failed ({error}, {name}) and was not acknowledged. Is the disk full (`df`), is there a "
            "limit on file sizes (`ulimit -f`), or is the disk failing (`dmesg`)?"
        )
    return StoreError(DAMAGED.format(path=path, how=error))


def _is_nearly_full(path: Path) -> bool:
    """For failures where SQLite reports a full disk only as a failed write."""
    try:
        room = os.statvfs(path.parent)
    except OSError:
        return False
    return room.f_bavail * room.f_frsize < 1 << 16


def _holders_in_words(path: Path) -> str:
    pids = holders(path)
    if not pids:
        return "another process"
    return " and ".join(f"process {pid} ({_command(pid)})" for pid in pids)


def holders(path: Path) -> list[int]:
    """Other processes that hold a lock on the file, according to the kernel."""
    try:
        found = path.stat()
        lines = Path("/proc/locks").read_text().splitlines()
    except OSError:
        return []
    place = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
    fields = [line.split() for line in lines]
    pids = {int(line[4]) for line in fields if len(line) > 5 and line[5] == place and line[4].isdigit()}
    return sorted(pids - {os.getpid(), 0})


def _command(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return "has ended since"
    shown = " ".join(b" ".join(words[:4]).decode(errors="replace").split())
    return shown[:80] or "no command line"
