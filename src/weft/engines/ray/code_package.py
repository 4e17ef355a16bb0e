"""A job's folder as one file that can be sent to nodes (``weft up --code ship``).

It is packed once, when the job first starts, and kept with the job: every attempt runs the same code, on every node.
Version control data, environments, and caches are left out.
"""

from __future__ import annotations

import os
import shutil
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from weft.engines.ray import job_folders
from weft.errors import UsageError

MAX_CODE_BYTES = 512 << 20
"""Ray's own limit for a working directory; more than that is data, not code."""
LEFT_OUT = frozenset(
    {".git", ".hg", ".svn", ".venv", "venv", ".tox", "__pycache__", ".mypy_cache", ".pytest_cache", ".ruff_cache"}
)
_MAX_NAMED = 3
_OLDEST = (1980, 1, 1, 0, 0, 0)
"""The oldest time that a zip file can hold."""


def check_size(folder: Path, max_bytes: int = MAX_CODE_BYTES) -> None:
    """Refuse a folder that is too large to be sent to every node, and say what makes it so large."""
    sizes: dict[str, int] = {}
    for path in _files(folder):
        top = path.relative_to(folder).parts[0]
        sizes[top] = sizes.get(top, 0) + path.lstat().st_size
    total = sum(sizes.values())
    if total > max_bytes:
        largest = sorted(sizes.items(), key=lambda item: -item[1])[:_MAX_NAMED]
        named = ", ".join(f"{name} ({_mib(size)})" for name, size in largest)
        raise UsageError(
            f"the job's folder {folder} has {_mib(total)}, but --code ship sends at most {_mib(max_bytes)} "
            f"(.git, .venv, and caches are left out): the largest are {named}; keep data outside the folder, choose "
            "a smaller one with --cwd, or put the code in a folder that all nodes see and use --code shared"
        )


def pack(folder: Path, package: Path) -> None:
    """Pack the folder into one file, unless that was done before."""
    if package.exists():
        return
    check_size(folder)
    package.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    aside = package.with_name(f".{package.name}-{os.getpid()}")
    try:
        with zipfile.ZipFile(aside, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
            for path in _files(folder):
                info = zipfile.ZipInfo(str(path.relative_to(folder)), _OLDEST)
                info.external_attr = (path.stat().st_mode & 0o777) << 16
                info.compress_type = zipfile.ZIP_DEFLATED
                with path.open("rb") as source, archive.open(info, "w") as target:
                    shutil.copyfileobj(source, target)
        os.replace(aside, package)
    finally:
        aside.unlink(missing_ok=True)


def unpack(package: Path, folder: Path) -> None:
    """Unpack into ``folder``, which is complete or absent."""
    aside = folder.with_name(f".{folder.name}")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True, mode=0o700)
    with zipfile.ZipFile(package) as archive:
        for info in archive.infolist():
            made = Path(archive.extract(info, aside))  # never writes outside of this folder
            made.chmod(0o600 | ((info.external_attr >> 16) & 0o111))
    os.replace(aside, folder)


class NodeCode:
    """The code of jobs on one node: one folder per job, complete or absent."""

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


def moved(words: Sequence[str], before: str, after: str) -> tuple[str, ...]:
    """The words, with paths into the folder changed to where it is on the node.

    >>> moved(["python", "/home/me/job/train.py", "/home/me/data"], "/home/me/job", "/tmp/code")
    ('python', '/tmp/code/train.py', '/home/me/data')
    """
    return tuple(after + word[len(before) :] if f"{word}/".startswith(f"{before}/") else word for word in words)


def _files(folder: Path) -> Iterator[Path]:
    """Regular files, and links to such files inside the folder, in an order that does not depend on the disk."""
    root = folder.resolve()
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not _is_left_out(name))
        for name in sorted(names):
            path = Path(parent, name)
            is_inside = not path.is_symlink() or root in path.resolve().parents
            if is_inside and path.is_file() and not _is_left_out(name):
                yield path


def _is_left_out(name: str) -> bool:
    return name in LEFT_OUT or name.endswith(".pyc")


def _mib(num_bytes: int) -> str:
    return f"{num_bytes / 2**20:.0f} MiB"
