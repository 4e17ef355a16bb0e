"""The files of jobs on a node, in one folder per job: how folders are named, and when they are deleted."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import quote, unquote

KEPT_S = 600.0
"""How long to keep files of a job that no longer runs here: it may come back, and then need not be sent again."""
PACKAGE = ".zip"


def folder_of(root: Path, job_id: str) -> Path:
    return root / quote(job_id, safe="")


def package_of(root: Path, job_id: str) -> Path:
    """The file that is unpacked into the job's folder once it is complete."""
    return root / f".{quote(job_id, safe='')}{PACKAGE}"


def sweep(root: Path, running: Iterable[str]) -> None:
    """Delete the files of jobs that have not run here for a while."""
    kept = set(running)
    with contextlib.suppress(OSError):
        for entry in os.scandir(root):
            job_id = unquote(entry.name.removeprefix(".").removesuffix(PACKAGE))
            with contextlib.suppress(OSError):
                if job_id not in kept and time.time() - entry.stat(follow_symlinks=False).st_mtime > KEPT_S:
                    if entry.is_dir(follow_symlinks=False):
                        shutil.rmtree(entry.path, ignore_errors=True)
                    else:
                        os.unlink(entry.path)
