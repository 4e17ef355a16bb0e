"""The checkpoints of jobs on one node, if nodes share no folder (``weft up --checkpoints relay``).

Workers write here.  Each node has only the files of its own workers, so a checkpoint here may be only part of one.  The
controller's machine collects the parts (``checkpoint_relay``); before an attempt starts, its nodes receive the newest
completely collected checkpoint, and everything else is deleted, so that all nodes resume from the same step.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
from pathlib import Path

from weft.core.checkpoint_files import MANIFEST_NAME, STEP_NAME, listed_files
from weft.engines.ray import job_folders
from weft.engines.regular_file import open_regular

PIECE_BYTES = 4 << 20
_ARRIVING = ".arriving-"


class NodeCheckpoints:
    """One node's folder; every call is short, except ``settle``, which reads all files of a checkpoint."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def prepare(self) -> None:
        try:
            self.root.mkdir(parents=True, exist_ok=True, mode=0o700)
            (self.root / ".writable").write_bytes(b"")
        except OSError as error:
            raise OSError(
                f"it cannot keep checkpoints in {self.root} ({error.strerror}): set WEFT_HOME to a path that can be "
                "created on every node, or use --checkpoints shared"
            ) from error

    def folder(self, job_id: str) -> Path:
        """Where the workers of a job save."""
        return job_folders.folder_of(self.root, job_id)

    def steps(self, job_id: str) -> dict[str, dict[str, int]]:
        """The files that exist of each checkpoint: names and sizes."""
        found: dict[str, dict[str, int]] = {}
        with contextlib.suppress(OSError):
            for entry in os.scandir(self.folder(job_id)):
                name = entry.name.removeprefix(_ARRIVING)
                if STEP_NAME.fullmatch(name):
                    with contextlib.suppress(OSError):  # being deleted by its workers
                        found.setdefault(name, {}).update(_sizes(Path(entry.path)))
        return found

    def newest(self, job_id: str) -> str:
        """The newest checkpoint that workers have finished here; "" if there is none."""
        with contextlib.suppress(OSError):
            return max((name for name in os.listdir(self.folder(job_id)) if STEP_NAME.fullmatch(name)), default="")
        return ""

    def piece(self, job_id: str, step: str, file: str, offset: int) -> bytes:
        """Part of a file; empty at its end."""
        descriptor = open_regular(_inside(self.folder(job_id) / step, file))
        try:
            return os.pread(descriptor, PIECE_BYTES, offset)
        finally:
            os.close(descriptor)

    def put(self, job_id: str, step: str, file: str, offset: int, data: bytes) -> None:
        """Write part of a file that is being sent here; the first part replaces an earlier file."""
        arriving = self.folder(job_id) / f"{_ARRIVING}{step}"
        arriving.mkdir(parents=True, exist_ok=True, mode=0o700)
        flags = os.O_WRONLY | os.O_CREAT | (0 if offset else os.O_TRUNC)
        descriptor = open_regular(_inside(arriving, file), flags, 0o600)
        try:
            view = memoryview(data)
            while view:
                num = os.pwrite(descriptor, view, offset)
                view, offset = view[num:], offset + num
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def settle(self, job_id: str, step: str, manifest: bytes) -> list[str]:
        """Make ``step`` the only checkpoint of the job here; returns the files that are missing or damaged.

        Without a step, deletes all checkpoints.
        """
        folder = self.folder(job_id)
        if step:
            arriving, present = folder / f"{_ARRIVING}{step}", folder / step
            arriving.mkdir(parents=True, exist_ok=True, mode=0o700)
            wrong = []
            for entry in listed_files(manifest):
                if not (arriving / entry.name).exists() and (present / entry.name).exists():
                    os.rename(present / entry.name, arriving / entry.name)
                if _checksum(arriving / entry.name) != entry.sha256:
                    wrong.append(entry.name)
                    (arriving / entry.name).unlink(missing_ok=True)
            if wrong:
                return wrong
            descriptor = os.open(arriving / MANIFEST_NAME, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(manifest)
                file.flush()
                os.fsync(descriptor)
            shutil.rmtree(present, ignore_errors=True)
            arriving.rename(present)
        with contextlib.suppress(FileNotFoundError):
            for name in os.listdir(folder):
                if name != step and STEP_NAME.fullmatch(name.removeprefix(_ARRIVING)):
                    shutil.rmtree(folder / name, ignore_errors=True)
        return []


def _sizes(folder: Path) -> dict[str, int]:
    return {entry.name: entry.stat().st_size for entry in os.scandir(folder) if entry.is_file(follow_symlinks=False)}


def _inside(folder: Path, file: str) -> Path:
    if "/" in file or file.startswith("."):
        raise ValueError(f"{file!r} is not the name of a file of a checkpoint")
    return folder / file


def _checksum(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return ""
