"""When a run is saved, what is saved, and loading the newest good checkpoint."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from weft.core.checkpoint_files import MANIFEST_NAME
from weft.errors import CheckpointError, InputError, UsageError
from weft.version import __version__
from weft.worker.checkpoint_folder import CheckpointFolder
from weft.worker.data import SessionLoader
from weft.worker.manifest import Manifest, first_difference, parse_manifest
from weft.worker.peers import Peers
from weft.worker.rng import capture_rng
from weft.worker.scaling import RateScaling
from weft.worker.shards import Registered, capture_own, capture_replicated, read_parts, register, restore
from weft.worker.writer import CheckpointPart, CheckpointWriter

_EXIT_PATIENCE_S = 5.0


class Checkpointing:
    """The checkpoints of one run.  Before :meth:`begin`, saving does nothing."""

    def __init__(self, folder: CheckpointFolder, *, every_s: float) -> None:
        self.folder = folder
        self.registered: Registered | None = None
        self.data: SessionLoader | None = None
        self.saved_step = -1
        self.saved_finished = False
        self._every_s = every_s
        self._writer: CheckpointWriter | None = None
        self._asked = False
        self._since_s = time.monotonic()

    def begin(
        self, objects: dict[str, Any], data: SessionLoader | None, peers: Peers, say: Callable[[str], None]
    ) -> Manifest | None:
        """Register the objects to save, and load the newest good checkpoint into them, if there is one."""
        if self.registered is not None:
            raise UsageError("run.resume was called twice: call it once, with everything that should be saved")
        self.registered = register(objects)
        self.data = data
        found, token = find_checkpoint(self.folder, peers, secrets.token_hex(4), say)
        self._writer = CheckpointWriter(self.folder, peers.on_new_group(), token)
        if found is None:
            return None
        manifest = load_checkpoint(found, self.registered)
        peers.all_gather(manifest.step)  # no worker may ask another for state it has not loaded yet
        if data is not None:
            if manifest.data is None:
                raise InputError(
                    f"the checkpoint {found} has no position in the data: call run.resume without data= to load it, or "
                    "use a different checkpoint folder"
                )
            data.load_state_dict(manifest.data)
        self.saved_step, self.saved_finished = manifest.step, manifest.finished
        say(f"resuming at step {manifest.step} (epoch {manifest.epoch}) from {found}")
        return manifest

    def ask(self) -> None:
        """Save soon after this step."""
        self._asked = True

    def restart_timer(self) -> None:
        self._since_s = time.monotonic()

    @property
    def busy(self) -> bool:
        """Whether a checkpoint is being written in the background."""
        return self._writer is not None and self._writer.busy

    def wanted(self, rank: int) -> bool:
        """Whether this worker wants one now: the script asked, or (on rank 0 only) the interval has passed."""
        if self._writer is None:
            return False
        due = rank == 0 and 0 < self._every_s <= time.monotonic() - self._since_s and not self.busy
        return due or self._asked

    def save(
        self,
        step: int,
        data: SessionLoader,
        peers: Peers,
        device: torch.device,
        scaling: RateScaling | None,
        *,
        in_background: bool = False,
        finished: bool = False,
    ) -> None:
        self._asked = False
        self.restart_timer()
        if self._writer is None or self.registered is None:
            return
        self._writer.finish()
        if self.saved_step == step and (self.saved_finished or not finished):
            return
        manifest = Manifest(
            step=step,
            epoch=data.epoch,
            position=data.position,
            world_size=peers.world_size,
            weft_version=__version__,
            torch_version=str(torch.__version__),
            finished=finished,
            created_s=time.time(),
            models=self.registered.entries(),
            data=data.state_dict(),
            scaling=scaling.state_dict() if scaling else None,
        )
        snapshot = CheckpointPart(
            manifest=manifest,
            own=capture_own(self.registered, peers.rank, peers.world_size),
            replicated=capture_replicated(self.registered) if peers.rank == 0 else None,
            rng=capture_rng(device),
        )
        self._writer.write(snapshot, in_background=in_background)
        self.saved_step, self.saved_finished = step, finished

    def raise_error(self) -> None:
        """Raise an error of the background writer, if there was one."""
        if self._writer is not None:
            self._writer.raise_error()

    def finish(self) -> None:
        """Wait for the background writer; raise its error, if there was one."""
        if self._writer is not None:
            self._writer.finish()

    def close(self) -> None:
        """Waits a limited time: after a failure, other workers may never finish writing."""
        if self._writer is not None:
            self._writer.abandon(_EXIT_PATIENCE_S)
        self.folder.close()


def find_checkpoint(
    folder: CheckpointFolder, peers: Peers, token: str, say: Callable[[str], None]
) -> tuple[Path | None, str]:
    """Rank 0 finds and verifies it; all workers get its result or error, and its token for this run's files."""
    failure, found = "", None
    if peers.rank == folder.keeper:
        try:
            folder.open()
            newest = folder.newest_good(say) if peers.rank == 0 else None
            found = newest[0].name if newest else None
        except CheckpointError as error:
            failure = str(error)
        except OSError as error:
            failure = f"the checkpoint folder {folder.path} cannot be used ({error})"
    answers = peers.all_gather([failure, found, token])
    failure = next((theirs for theirs, _, _ in answers if theirs), "")
    if failure:
        raise CheckpointError(failure)
    _, found, token = answers[0]
    return (folder.path.absolute() / found if found else None), token


def load_checkpoint(path: Path, registered: Registered) -> Manifest:
    """Load everything registered from a checkpoint that rank 0 has verified.

    Other workers may still be loading on return: do not ask for sharded state before all are done.
    """
    try:
        text = (path / MANIFEST_NAME).read_bytes()
    except OSError as error:
        raise CheckpointError(
            f"worker 0 is resuming from {path}, but this worker cannot read it ({error.strerror}): the checkpoint "
            "folder must be the same shared folder on every host"
        ) from error
    manifest = parse_manifest(text, str(path / MANIFEST_NAME))
    for key, entries in registered.entries().items():
        if key not in manifest.models:
            raise CheckpointError(
                f"the checkpoint {path} has no model {key}= (it has {', '.join(manifest.models) or 'none'}): give "
                "run.resume the same names as in the run that wrote it, or use a different checkpoint folder"
            )
        difference = first_difference(manifest.models[key], entries)
        if difference:
            raise CheckpointError(
                f"the checkpoint {path} is of a different model: {difference}; build the same model, or use a "
                "different checkpoint folder"
            )
    parts, replicated = read_parts(path, manifest.world_size)
    missing = [key for key in registered.optimizers if key not in replicated["groups"]]
    missing += [key for key in registered.others if key not in replicated["others"]]
    if missing:
        raise CheckpointError(
            f"the checkpoint {path} has no {missing[0]}=: give run.resume the same objects as in the run that wrote "
            "it, or use a different checkpoint folder"
        )
    restore(registered, parts, replicated)
    return manifest
