"""A checkpoint's ``manifest.json``: written last, so its presence means that the checkpoint is complete."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from weft.core.checkpoint_files import FileEntry
from weft.errors import CheckpointError

FORMAT = 1


class DamagedError(CheckpointError):
    """This checkpoint's content changed after it was written; an older one may still be good."""


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """An entry of a model's state dict, to detect a different model before anything is loaded."""

    name: str
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """Everything but the tensors."""

    step: int
    epoch: int
    position: int
    world_size: int
    weft_version: str
    torch_version: str
    finished: bool
    created_s: float
    files: tuple[FileEntry, ...] = ()
    models: dict[str, tuple[TensorEntry, ...]] = field(default_factory=dict)
    # By rank: the state of each worker's random generators.
    rng: tuple[dict[str, Any], ...] = ()
    # State dicts of the loader and the learning-rate rule.
    data: dict[str, Any] | None = None
    scaling: dict[str, Any] | None = None

    def to_json(self) -> str:
        values = asdict(self)
        return json.dumps({"format": FORMAT, "sha256": _digest(values), **values}, indent=1)


def parse_manifest(text: str | bytes, where: str) -> Manifest:
    """Read a manifest; damage raises :class:`DamagedError`, a newer format :class:`CheckpointError`."""
    try:
        values = json.loads(text)
        found = values.pop("format")
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise DamagedError(f"{where} is not a weft manifest ({error})") from error
    if not isinstance(found, int) or found > FORMAT:
        raise CheckpointError(
            f"{where} has format {found}, and this version of weft reads up to {FORMAT}: it was written by a newer "
            f"version ({values.get('weft_version', 'unknown')}); upgrade weft, or use a different checkpoint folder"
        )
    # Early manifests had no checksum.
    if "sha256" in values and values.pop("sha256") != _digest(values):
        raise DamagedError(f"{where} does not match its checksum")
    try:
        values["files"] = tuple(FileEntry(**entry) for entry in values["files"])
        values["models"] = {
            key: tuple(TensorEntry(e["name"], tuple(e["shape"]), e["dtype"]) for e in entries)
            for key, entries in values["models"].items()
        }
        values["rng"] = tuple(values["rng"])
        return Manifest(**values)
    except (KeyError, TypeError, AttributeError) as error:
        raise DamagedError(f"{where} has a missing or invalid field: {error}") from error


def _digest(values: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def first_difference(saved: Sequence[TensorEntry], here: Sequence[TensorEntry]) -> str | None:
    """Describes the first parameter in which two models differ; ``None`` if there is none."""
    ours = {entry.name: entry for entry in here}
    theirs = {entry.name for entry in saved}
    for entry in saved:
        if entry.name not in ours:
            return f"{entry.name} {_kind(entry)} is in the checkpoint but not in this model"
        other = ours[entry.name]
        if (entry.shape, entry.dtype) != (other.shape, other.dtype):
            return f"{entry.name} is {_kind(entry)} in the checkpoint and {_kind(other)} in this model"
    for entry in here:
        if entry.name not in theirs:
            return f"{entry.name} {_kind(entry)} is in this model but not in the checkpoint"
    return None


def _kind(entry: TensorEntry) -> str:
    return f"{entry.dtype}{list(entry.shape)}"
