"""The code of jobs on one node, as sent there (``weft up --code ship``)."""

from __future__ import annotations

from pathlib import Path

from weft.engines.ray import job_folders
from weft.engines.ray.code_package import unpack


class NodeCode:
    """One folder per job, complete or absent."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def folder(self, job_id: str) -> Path:
        return job_folders.folder_of(self.root, job_id)

    def has(self, job_id: str) -> bool:
        return self.folder(job_id).is_dir()

    def put(self, job_id: str, offset: int, data: bytes, *, is_last: bool) -> None:
        """Write part of the package; after the last part, unpack it."""
        package = job_folders.package_of(self.root, job_id)
        self.root.mkdir(parents=True, exist_ok=True, mode=0o700)
        with package.open("r+b" if offset else "wb") as file:
            file.seek(offset)
            file.write(data)
        if is_last:
            unpack(package, self.folder(job_id))
            package.unlink()
