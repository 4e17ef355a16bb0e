"""Opening the journal's file: settings, who holds it, whether it is whole, and how SQLite's errors read.

[Note: one writer]
``locking_mode=EXCLUSIVE`` keeps SQLite's own lock for as long as the file is open, and the kernel gives it back when
the process dies, however it dies.  So a second controller, or a curious ``sqlite3`` shell in the midst of a write,
is refused by the file itself and not by a lock file that can be stale.  Such locks end when *any* handle on the file is
closed by the process that holds them: nothing else in the controller may open this file.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from weft.errors import StoreError

BUSY_S = 2.0
"""How long to wait for somebody who holds the file; a controller that was just killed is gone long before."""

DAMAGED = (
    "{path} is damaged ({how}). It was left as it is. `weft repair` keeps it beside a new one, made of the last good "
    "copy and of every event that can still be read; then start again"
)


def connect(path: Path) -> sqlite3.Connection:
    """A connection that writes durably and alone.  Transactions are begun and ended by hand."""
    make_private(path)
    connection = sqlite3.connect(path, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
    try:
        connection.execute("PRAGMA locking_mode = EXCLUSIVE")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        # Takes the lock now: in WAL mode a reader alone would not hold it against a second writer.
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("COMMIT")
    except BaseException:
        connection.close()
        raise
    return connection


def make_private(path: Path) -> None:
    """Make a file that only its owner may read, if there is none: jobs' environments hold secrets."""
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        return
    except OSError as error:
        raise StoreError(
            f"{path} cannot be made ({error.strerror}): expected a folder that you may write to, with room on its disk"
        ) from error


def check_whole(connection: sqlite3.Connection) -> None:
    """Raise what SQLite raises for a damaged file, if this one is."""
    found = [row[0] for row in connection.execute("PRAGMA quick_check(3)")]
    if found != ["ok"]:
        raise sqlite3.DatabaseError("; ".join(found))


@contextlib.contextmanager
def in_words(path: Path, doing: str) -> Iterator[None]:
    """Turn SQLite's errors into ones that say what to do."""
    try:
        yield
    except sqlite3.Error as error:
        raise _explained(path, doing, error) from error


@contextlib.contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """All of the block or nothing of it; the connection is usable again after a failure."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:  # SQLite rolls some failures back by itself, a full disk among them
            connection.execute("ROLLBACK")
        raise


def _explained(path: Path, doing: str, error: sqlite3.Error) -> StoreError:
    name = getattr(error, "sqlite_errorname", None) or ""
    if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
        return StoreError(
            f"{path} is held by {_holders_in_words(path)}: one controller at a time may write it. "
            "`weft status` talks to the one that runs; `weft down` ends it"
        )
    if name.startswith("SQLITE_FULL") or (name.startswith("SQLITE_IOERR") and _is_nearly_full(path)):
        return StoreError(
            f"{doing} {path}: the disk is full. Nothing of it was acknowledged, and what was before is safe: "
            f"make room on the disk of {path.parent} and it goes on"
        )
    if name.startswith(("SQLITE_CANTOPEN", "SQLITE_READONLY", "SQLITE_PERM", "SQLITE_AUTH")):
        return StoreError(f"{doing} {path} failed ({error}): expected a folder and a file that you may write to")
    if name.startswith("SQLITE_IOERR"):
        return StoreError(
            f"{doing} {path} failed ({error}, {name}): nothing of it was acknowledged. Is the disk full or a limit on "
            "file sizes in force (`df`, `ulimit -f`), or does the disk fail (`dmesg`)?"
        )
    return StoreError(DAMAGED.format(path=path, how=error))


def _is_nearly_full(path: Path) -> bool:
    """The disk filled up at a place where SQLite reports no more than a failed write."""
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
    """Other processes that have a lock on the file, as far as the kernel tells."""
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
        return "gone by now"
    shown = " ".join(b" ".join(words[:4]).decode(errors="replace").split())
    return shown[:80] or "no command line"
