"""The names of a checkpoint's files, and which files belong to it: for workers, and for whatever copies checkpoints."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

MANIFEST_NAME = "manifest.json"
STEP_NAME = re.compile(r"step-(\d{12})")
"""The folder of a checkpoint; sorted by name, checkpoints are sorted by step."""


@dataclass(frozen=True, slots=True)
class FileEntry:
    """A file of the checkpoint, with its size and checksum."""

    name: str
    num_bytes: int
    sha256: str


def listed_files(manifest: bytes) -> tuple[FileEntry, ...]:
    """The files that a manifest lists; raises ``ValueError`` if it is not a manifest.

    >>> listed_files(b'{"files": [{"name": "rank-00000.pt", "num_bytes": 3, "sha256": "ab"}]}')
    (FileEntry(name='rank-00000.pt', num_bytes=3, sha256='ab'),)
    """
    try:
        return tuple(FileEntry(**entry) for entry in json.loads(manifest)["files"])
    except (KeyError, TypeError) as error:
        raise ValueError(f"{MANIFEST_NAME} lists no files ({error})") from error
