"""The code of jobs on one node, as it was sent there (``weft up --code ship``)."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import quote, unquote

from weft.engines.ray.code_package import unpack

KEPT_S = 600.0
"""How long the code of a job that no longer runs here is kept: it may come back."""


class NodeCode:
    """One folder per job, there completely or not at all."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def folder(self, job_id: str) -> Path:
        return self._root / quote(job_id, safe="")

    def has(self, job_id: str) -> bool:
        return self.folder(job_id).is_dir()

    def put(self, job_id: str, offset: int, data: bytes, *, is_last: bool) -> None:
        """Part of the package; with the last one it is unpacked."""
        package = self._root / f".{quote(job_id, safe='')}.zip"
        self._root.mkdir(parents=True, exist_ok=True, mode=0o700)
        with package.open("r+b" if offset else "wb") as file:
            file.seek(offset)
            file.write(data)
        if is_last:
            unpack(package, self.folder(job_id))
            package.unlink()

    def sweep(self, running: Iterable[str]) -> None:
        """Delete the code of jobs that have not run here for a while."""
        kept = set(running)
        with contextlib.suppress(OSError):
            for entry in os.scandir(self._root):
                name = entry.name.removeprefix(".").removesuffix(".zip")
                if unquote(name) not in kept and time.time() - entry.stat().st_mtime > KEPT_S:
                    if entry.is_dir(follow_symlinks=False):
                        shutil.rmtree(entry.path, ignore_errors=True)
                    else:
                        os.unlink(entry.path)
