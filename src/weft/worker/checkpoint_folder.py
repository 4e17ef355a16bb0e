"""A folder of checkpoints, each complete or absent.

    checkpoints/step-000000000400/          manifest.json and the files it lists
    checkpoints/.writing-000000000450-.../  being written; not a checkpoint
    checkpoints/.damaged-step-.../          found damaged and set aside

[Note: complete or absent]  Files go into a temporary folder, each synced to disk; the manifest with their checksums is
written last; one rename makes the folder a checkpoint, and syncing the parent makes the rename durable.  Whatever
happens at any moment, a folder with the name of a checkpoint is complete.  Old ones lose their name before their files.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import IO, Any

from weft.core.checkpoint_files import MANIFEST_NAME, STEP_NAME, FileEntry
from weft.errors import CheckpointError
from weft.process.folder_sync import sync_folder
from weft.worker.manifest import DamagedError, Manifest, parse_manifest

_WRITING, _DELETING, _DAMAGED = ".writing-", ".leaving-", ".damaged-"
_LOCK_NAME = ".lock"
_LOCK_PATIENCE_S = 10.0
_CHUNK_BYTES = 1 << 20


class CheckpointFolder:
    """The checkpoints in one folder: their names, order, creation and deletion.  Knows nothing about tensors.

    One worker, the ``keeper``, opens it and commits.  All workers use the same folder, unless each host has its own:
    then ``host`` tells them apart, each has a keeper, and a checkpoint there lists files that are on other hosts.
    """

    def __init__(self, path: Path, keep: int, *, host: int = 0, keeper: int = 0) -> None:
        self.path = path
        self.host = host
        self.keeper = keeper
        self._keep = keep
        self._lock: IO[bytes] | None = None

    # ---- one run at a time

    def open(self) -> None:
        """Create the folder if needed, lock it for this run, and delete leftovers."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = (self.path / _LOCK_NAME).open("ab")
        except OSError as error:
            raise CheckpointError(
                f"the checkpoint folder {self.path} cannot be written ({error.strerror}): make it writable, or give "
                "another one with weft.session(checkpoint_dir=...) or WEFT_CHECKPOINT_DIR"
            ) from error
        self._take_lock(self._lock)
        for name in os.listdir(self.path):
            if name.startswith((_WRITING, _DELETING)):
                shutil.rmtree(self.path / name, ignore_errors=True)

    def close(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _take_lock(self, lock: IO[bytes]) -> None:
        deadline_s = time.monotonic() + _LOCK_PATIENCE_S
        while True:
            try:
                # A record lock: loader processes do not inherit it, so it ends with the worker.
                fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except OSError as error:
                if time.monotonic() > deadline_s:
                    self.close()
                    raise CheckpointError(
                        f"another run is using the checkpoint folder {self.path}: wait for it to end, or choose a "
                        "different folder with weft.session(checkpoint_dir=...) or WEFT_CHECKPOINT_DIR"
                    ) from error
                time.sleep(0.05)

    # ---- writing

    def aside(self, step: int, token: str) -> Path:
        """Where the checkpoint of a step is written; the token keeps attempts apart."""
        return self.path / f"{_WRITING}{step:012d}-{token}"

    def name_of(self, step: int) -> Path:
        return self.path / f"step-{step:012d}"

    def commit(self, aside: Path, manifest: Manifest, elsewhere: Collection[str] = ()) -> Path:
        """Turn a folder with all files written into a checkpoint, then delete the oldest ones.

        ``elsewhere``: files that are on other hosts.
        """
        for entry in manifest.files:
            if entry.name in elsewhere:
                continue
            size = (aside / entry.name).stat().st_size if (aside / entry.name).exists() else None
            if size != entry.num_bytes:
                raise CheckpointError(
                    f"another worker wrote {entry.name}, but it is missing or incomplete in {aside} here: the "
                    "checkpoint folder must be the same shared folder on every host"
                )
        write_file(aside / MANIFEST_NAME, lambda file: file.write(manifest.to_json().encode()))
        sync_folder(aside)
        final = self.name_of(manifest.step)
        if final.exists():
            self._delete(final)
        aside.rename(final)
        sync_folder(self.path)
        for old in self.list()[self._keep :]:
            self._delete(old)
        return final

    def _delete(self, path: Path) -> None:
        renamed = path.with_name(f"{_DELETING}{path.name}-{time.monotonic_ns()}")
        path.rename(renamed)
        shutil.rmtree(renamed, ignore_errors=True)

    # ---- reading

    def list(self) -> list[Path]:
        """Newest first."""
        if not self.path.is_dir():
            return []
        names = [name for name in os.listdir(self.path) if STEP_NAME.fullmatch(name)]
        return [self.path / name for name in sorted(names, reverse=True)]

    def newest_good(self, on_damage: Callable[[str], None]) -> tuple[Path, Manifest] | None:
        """The newest undamaged checkpoint; damaged ones are reported and set aside."""
        for path in self.list():
            try:
                return path, verify(path)
            except DamagedError as error:
                kept = path.with_name(f"{_DAMAGED}{path.name}")
                on_damage(f"checkpoint {path} is damaged ({error}): skipping it and looking for an older one")
                if self._lock is not None:
                    shutil.rmtree(kept, ignore_errors=True)
                    path.rename(kept)
        return None


def verify(path: Path) -> Manifest:
    """Return the manifest of a checkpoint after comparing all files with their checksums."""
    try:
        text = (path / MANIFEST_NAME).read_bytes()
    except OSError as error:
        raise DamagedError(f"{MANIFEST_NAME} cannot be read: {error.strerror}") from error
    manifest = parse_manifest(text, str(path / MANIFEST_NAME))
    for entry in manifest.files:
        try:
            num_bytes, digest = _digest(path / entry.name)
        except OSError as error:
            raise DamagedError(f"{entry.name} cannot be read: {error.strerror}") from error
        if num_bytes != entry.num_bytes:
            raise DamagedError(f"{entry.name} has {num_bytes} bytes instead of {entry.num_bytes}")
        if digest != entry.sha256:
            raise DamagedError(f"{entry.name} does not match its checksum")
    return manifest


class _HashingFile:
    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.num_bytes = 0
        self.sha256 = hashlib.sha256()

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        self.sha256.update(view)
        self._file.write(view)
        self.num_bytes += view.nbytes
        return view.nbytes

    def flush(self) -> None:
        self._file.flush()


def write_file(path: Path, fill: Callable[[Any], Any]) -> FileEntry:
    """Write a file and sync it to disk; returns its size and checksum."""
    with path.open("wb") as file:
        hashing = _HashingFile(file)
        fill(hashing)
        file.flush()
        os.fsync(file.fileno())
    return FileEntry(path.name, hashing.num_bytes, hashing.sha256.hexdigest())


def _digest(path: Path) -> tuple[int, str]:
    sha256 = hashlib.sha256()
    num_bytes = 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            sha256.update(chunk)
            num_bytes += len(chunk)
    return num_bytes, sha256.hexdigest()
