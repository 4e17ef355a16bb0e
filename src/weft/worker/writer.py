"""Writing a checkpoint from all workers in parallel, while training continues.

Each worker writes its own files; then all exchange their results, on a separate group so as not to disturb the
training's collectives; only if all succeeded, the folder's keeper turns the files into a checkpoint.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
import threading
from dataclasses import dataclass
from typing import Any

import torch

from weft.core.checkpoint_files import FileEntry
from weft.errors import CheckpointError
from weft.process.native_threads import NativeThread
from weft.process.turns import TURNS
from weft.worker.checkpoint_folder import CheckpointFolder, write_file
from weft.worker.manifest import Manifest
from weft.worker.peers import Peers
from weft.worker.shards import REPLICATED_NAME, rank_file_name

# Lower priority than the training thread on the same core.
_NICENESS = 10


@dataclass(frozen=True, slots=True)
class CheckpointPart:
    """This worker's part of a checkpoint: copies that training does not change."""

    manifest: Manifest
    own: dict[str, Any]
    replicated: dict[str, Any] | None
    rng: dict[str, Any]


class CheckpointWriter:
    """Writes one checkpoint at a time.  Every worker has a writer and calls it in the same order.

    ``peers`` must be on a group of its own, created before training begins: creating one later would wait for a worker
    that has died.
    """

    def __init__(self, folder: CheckpointFolder, peers: Peers, token: str) -> None:
        self._folder = folder
        self._peers = peers
        self._token = token
        self._thread: NativeThread | None = None
        self._error: CheckpointError | None = None

    @property
    def busy(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def write(self, snapshot: CheckpointPart, *, in_background: bool) -> None:
        self.finish()
        if in_background:
            self._thread = NativeThread(self._write_in_background, args=(snapshot,), name="weft-checkpoint")
            self._thread.start()
        else:
            with TURNS.yielded(later=True):
                self._write(snapshot)

    def finish(self) -> None:
        """Wait for the checkpoint being written; raise its error, if there was one."""
        if self._thread is not None:
            # That thread waits for other workers.
            with TURNS.yielded(later=True):
                self._thread.join()
        self.raise_error()

    def abandon(self, patience_s: float) -> None:
        """After a failure: wait for a limited time, because other workers may be gone."""
        if self._thread is not None:
            self._thread.join(patience_s)

    def raise_error(self) -> None:
        """Raise an error of the background thread, if there was one; called between steps."""
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def _write_in_background(self, snapshot: CheckpointPart) -> None:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
        try:
            self._write(snapshot)
        except CheckpointError as error:
            self._error = error
        except Exception as error:
            self._error = CheckpointError(f"the checkpoint of step {snapshot.manifest.step} was not written: {error}")
            self._error.__cause__ = error

    def _write(self, snapshot: CheckpointPart) -> None:
        step, peers = snapshot.manifest.step, self._peers
        aside = self._folder.aside(step, self._token)
        files: list[FileEntry] = []
        failure = ""
        try:
            aside.mkdir(parents=True, exist_ok=True)
            files.append(write_file(aside / rank_file_name(peers.rank), lambda file: torch.save(snapshot.own, file)))
            if snapshot.replicated is not None:
                whole = snapshot.replicated
                files.append(write_file(aside / REPLICATED_NAME, lambda file: torch.save(whole, file)))
        except (OSError, RuntimeError) as error:
            failure = f"worker {peers.rank}: {_reason(error)}"
        host, is_keeper = self._folder.host, peers.rank == self._folder.keeper
        results = peers.all_gather([[dataclasses.asdict(entry) for entry in files], snapshot.rng, failure, host])
        failures = [theirs for _, _, theirs, _ in results if theirs]
        if not failures and is_keeper:
            manifest = dataclasses.replace(
                snapshot.manifest,
                files=tuple(FileEntry(**entry) for entries, _, _, _ in results for entry in entries),
                rng=tuple(rng for _, rng, _, _ in results),
            )
            elsewhere = {entry["name"] for entries, _, _, there in results for entry in entries if there != host}
            try:
                self._folder.commit(aside, manifest, elsewhere)
            except (OSError, CheckpointError) as error:
                failures = [f"worker {peers.rank}: {_reason(error)}"]
        failures = [failure for theirs in peers.all_gather(failures) for failure in theirs]
        if failures:
            if is_keeper:
                shutil.rmtree(aside, ignore_errors=True)
            raise CheckpointError(
                f"the checkpoint of step {step} was not written to {self._folder.path} ({failures[0]}): older ones are "
                "unchanged; free space or make the folder writable, then start again"
            )


def _reason(error: BaseException) -> str:
    """The file system's error, which torch.save hides behind its own."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.strerror:
            return cause.strerror
        cause = cause.__cause__ or cause.__context__
    return str(error).strip().split("\n")[0]
