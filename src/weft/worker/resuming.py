"""Finding the checkpoint to go on from, the same one on every worker, and loading it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from weft.errors import CheckpointError
from weft.worker.checkpoint import CheckpointFolder
from weft.worker.manifest import MANIFEST_NAME, Manifest, first_difference, parse_manifest
from weft.worker.peers import Peers
from weft.worker.shards import Registered, read_parts, restore


def find_checkpoint(
    folder: CheckpointFolder, peers: Peers, token: str, say: Callable[[str], None]
) -> tuple[Path | None, str]:
    """Rank 0 looks and checks; all follow, or all raise.  Also rank 0's token for what this run writes."""
    failure, found = "", None
    if peers.rank == 0:
        try:
            folder.open()
            newest = folder.newest_good(say)
            found = str(newest[0].absolute()) if newest else None
        except CheckpointError as error:
            failure = str(error)
        except OSError as error:
            failure = f"the checkpoint folder {folder.path} cannot be used ({error})"
    failure, found, token = peers.from_first([failure, found, token])
    if failure:
        raise CheckpointError(failure)
    return (Path(found) if found else None), token


def load_checkpoint(path: Path, registered: Registered) -> Manifest:
    """Load everything registered from a checkpoint that rank 0 has found good.

    Others may not have loaded theirs yet on return: sharded state must not be asked for before all have.
    """
    try:
        text = (path / MANIFEST_NAME).read_bytes()
    except OSError as error:
        raise CheckpointError(
            f"worker 0 goes on from {path}, but this worker cannot read it ({error.strerror}): the checkpoint folder "
            "must be the same shared folder on every host"
        ) from error
    manifest = parse_manifest(text, str(path / MANIFEST_NAME))
    for key, entries in registered.entries().items():
        if key not in manifest.models:
            raise CheckpointError(
                f"the checkpoint {path} holds no model {key}= (it has {', '.join(manifest.models) or 'none'}): give "
                "run.resume the same names as in the run that wrote it, or start in another checkpoint folder"
            )
        difference = first_difference(manifest.models[key], entries)
        if difference:
            raise CheckpointError(
                f"the checkpoint {path} is of another model: {difference}; build the same model, or start in another "
                "checkpoint folder"
            )
    parts, replicated = read_parts(path, manifest.world_size)
    missing = [key for key in registered.optimizers if key not in replicated["groups"]]
    missing += [key for key in registered.others if key not in replicated["others"]]
    if missing:
        raise CheckpointError(
            f"the checkpoint {path} holds no {missing[0]}=: give run.resume the same objects as in the run that wrote "
            "it, or start in another checkpoint folder"
        )
    restore(registered, parts, replicated)
    return manifest
