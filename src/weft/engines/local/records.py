"""The files through which controller and keeper communicate: the order, the claim, the status.

Every file is written under a temporary name and renamed, so a reader sees all of it or none of it.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from weft.core.engine import EngineEvent
from weft.core.events import Fate, WorkersExited, WorkersStarted
from weft.engines.local.process import Process
from weft.engines.regular_file import read_start
from weft.engines.worker_launch import GangPart
from weft.errors import EngineError
from weft.process.folder_sync import sync_folder

MAX_RECORD_BYTES = 1 << 24

_own_files = 0


class DamagedRecord(EngineError):
    """A file of an attempt is not what was written there."""


@dataclass(frozen=True, slots=True)
class Order:
    """Everything a keeper needs to know about its attempt."""

    job_id: str
    attempt: int
    argv: tuple[str, ...]
    cwd: str
    environment: Mapping[str, str]
    cores_by_rank: tuple[tuple[int, ...], ...]
    fresh: bool = False
    """The environment has variables that an interpreter reads only when it starts: a fork would miss them."""
    grace_s: float = 120.0
    hang_s: float = 5.0
    part: GangPart | None = None
    """Set when other workers of the attempt run on other nodes."""

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "environment": dict(self.environment)}

    @staticmethod
    def from_json(document: Mapping[str, Any]) -> Order:
        return Order(
            **{
                **document,
                "argv": tuple(document["argv"]),
                "cores_by_rank": tuple(tuple(cores) for cores in document["cores_by_rank"]),
                "part": GangPart(**document["part"]) if document.get("part") else None,
            }
        )


@dataclass(frozen=True, slots=True)
class Status:
    """An attempt's status; it has ended once it has a fate."""

    started_s: float | None = None
    workers: tuple[int, ...] = ()
    finished_s: float | None = None
    fate: Fate | None = None
    exit_code: int = 0
    reason: str = ""
    port: int = 0
    """Where workers on other nodes meet those here; bound before it is written here."""
    store_is_served: bool = False

    def ended(self, finished_s: float, fate: Fate, exit_code: int, reason: str) -> Status:
        return replace(self, finished_s=finished_s, fate=fate, exit_code=exit_code, reason=reason)

    def news(self, job_id: str, attempt: int, *, is_start_told: bool) -> list[EngineEvent]:
        """Events that have not been reported to the controller yet."""
        events: list[EngineEvent] = []
        if self.started_s is not None and not is_start_told:
            events.append(WorkersStarted(self.started_s, job_id, attempt))
        if self.fate is not None:
            finished_s = self.finished_s or time.time()
            events.append(WorkersExited(finished_s, job_id, attempt, self.fate, self.exit_code, self.reason))
        return events

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "fate": None if self.fate is None else self.fate.value}

    @staticmethod
    def from_json(document: Mapping[str, Any]) -> Status:
        fate = document["fate"]
        return Status(
            **{**document, "workers": tuple(document["workers"]), "fate": None if fate is None else Fate(fate)}
        )


def write(path: Path, document: Mapping[str, Any]) -> None:
    """Replace the file, durably; readable only by its owner, because environments contain secrets."""
    aside = _written_aside(path, document)
    try:
        try:
            os.replace(aside, path)
        except IsADirectoryError:
            _move_folder_aside(path)
            os.replace(aside, path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def remove(path: Path) -> None:
    """Delete the file if there is one."""
    try:
        path.unlink(missing_ok=True)
    except IsADirectoryError:
        _move_folder_aside(path)


def write_once(path: Path, document: Mapping[str, Any]) -> bool:
    """Create the file, durably, unless it exists.  Of several concurrent callers exactly one succeeds."""
    aside = _written_aside(path, document)
    try:
        os.link(aside, path)
    except FileExistsError:
        return False
    finally:
        aside.unlink()
    sync_folder(path.parent)
    return True


def _move_folder_aside(path: Path) -> None:
    """A folder took the place of a record: it is not ours, so keep it under another name."""
    os.replace(path, _unused_name(path))


def read(path: Path) -> dict[str, Any] | None:
    """The file's contents, or None if there is no file; raises :class:`DamagedRecord` if it cannot be understood."""
    try:
        document = json.loads(read_start(path, MAX_RECORD_BYTES))
    except FileNotFoundError:
        return None
    except PermissionError:
        raise  # it may be intact, and readable again later
    except (OSError, ValueError, RecursionError) as error:
        raise DamagedRecord(f"its {path.name} cannot be read ({_short(error)})") from error
    if not isinstance(document, dict):
        raise DamagedRecord(f"its {path.name} is not a record")
    return document


def read_claim(path: Path) -> Process | None:
    document = read(path)
    if document is None:
        return None
    match document:
        case {"pid": int(pid), "start_ticks": int(ticks), "boot_id": str(boot)} if len(document) == 3 and pid > 0:
            return Process(pid, ticks, boot)
    raise DamagedRecord(f"its {path.name} does not identify a process")


def read_status(path: Path) -> Status:
    document = read(path)
    if document is None:
        return Status()
    try:
        status = Status.from_json(document)
        for moment_s in (status.started_s, status.finished_s):
            if moment_s is not None and not math.isfinite(moment_s):
                raise ValueError(f"{moment_s} is not a time")
        return replace(status, exit_code=int(status.exit_code), reason=str(status.reason))
    except (ValueError, TypeError, KeyError) as error:
        raise DamagedRecord(f"its {path.name} is not a status ({_short(error)})") from error


def _short(error: Exception) -> str:
    return str(error).partition("\n")[0][:120]


def _written_aside(path: Path, document: Mapping[str, Any]) -> Path:
    aside = _unused_name(path)
    file = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        with open(file, "w", encoding="utf-8") as text:
            json.dump(document, text)
            text.flush()
            os.fsync(file)
    except BaseException:
        aside.unlink(missing_ok=True)  # on a full disk every byte counts
        raise
    return aside


def _unused_name(path: Path) -> Path:
    global _own_files
    _own_files += 1
    return path.with_name(f".{path.name}.{os.getpid()}.{_own_files}")
