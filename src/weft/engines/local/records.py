"""What controller and keeper tell each other through files: the order, the claim, the status.

Every file is written aside and renamed, so whoever reads one sees all of it or none of it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from weft.core.events import Fate
from weft.engines.local.process import Process

_own_files = 0


@dataclass(frozen=True, slots=True)
class Order:
    """All a keeper needs to know of its attempt."""

    job_id: str
    attempt: int
    argv: tuple[str, ...]
    cwd: str
    environment: Mapping[str, str]
    cores_by_rank: tuple[tuple[int, ...], ...]
    fresh: bool = False
    """The environment holds what an interpreter reads only at its start: no fork will do."""
    grace_s: float = 120.0
    hang_s: float = 5.0

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "environment": dict(self.environment)}

    @staticmethod
    def from_json(document: Mapping[str, Any]) -> Order:
        return Order(
            **{
                **document,
                "argv": tuple(document["argv"]),
                "cores_by_rank": tuple(tuple(cores) for cores in document["cores_by_rank"]),
            }
        )


@dataclass(frozen=True, slots=True)
class Status:
    """Where an attempt stands; without a fate it is not over."""

    started_s: float | None = None
    workers: tuple[int, ...] = ()
    finished_s: float | None = None
    fate: Fate | None = None
    exit_code: int = 0
    reason: str = ""

    def ended(self, finished_s: float, fate: Fate, exit_code: int, reason: str) -> Status:
        return replace(self, finished_s=finished_s, fate=fate, exit_code=exit_code, reason=reason)

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "fate": None if self.fate is None else self.fate.value}

    @staticmethod
    def from_json(document: Mapping[str, Any]) -> Status:
        fate = document["fate"]
        return Status(
            **{**document, "workers": tuple(document["workers"]), "fate": None if fate is None else Fate(fate)}
        )


def write(path: Path, document: Mapping[str, Any]) -> None:
    """Replace the file, durably; only its owner may read it, for environments hold secrets."""
    aside = _written_aside(path, document)
    os.replace(aside, path)
    _sync_folder(path.parent)


def write_once(path: Path, document: Mapping[str, Any]) -> bool:
    """Make the file, durably, unless it is there.  Of several who try exactly one succeeds."""
    aside = _written_aside(path, document)
    try:
        os.link(aside, path)
    except FileExistsError:
        return False
    finally:
        aside.unlink()
    _sync_folder(path.parent)
    return True


def read(path: Path) -> dict[str, Any] | None:
    """What the file says, or None when there is none."""
    try:
        document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    return document


def read_claim(path: Path) -> Process | None:
    document = read(path)
    return None if document is None else Process(**document)


def read_status(path: Path) -> Status:
    document = read(path)
    return Status() if document is None else Status.from_json(document)


def _written_aside(path: Path, document: Mapping[str, Any]) -> Path:
    global _own_files
    _own_files += 1
    aside = path.with_name(f".{path.name}.{os.getpid()}.{_own_files}")
    file = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with open(file, "w", encoding="utf-8") as text:
        json.dump(document, text)
        text.flush()
        os.fsync(file)
    return aside


def _sync_folder(path: Path) -> None:
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
