"""Reads files that others may have replaced: never blocks on a fifo or a device, never follows a link, and never reads
more than requested."""

from __future__ import annotations

import os
import stat
from pathlib import Path


class NotRegularError(OSError):
    """Something else is where a file should be."""


def open_regular(path: Path, flags: int = os.O_RDONLY, mode: int = 0o600) -> int:
    """A descriptor of a regular file; raises ``OSError`` immediately for anything else."""
    try:
        descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    except FileNotFoundError:
        raise
    except OSError as error:
        if path.is_symlink() or (path.exists() and not path.is_file()):
            raise NotRegularError(f"{path} is not a regular file: something else took its place") from error
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise NotRegularError(f"{path} is not a regular file: something else took its place")
    return descriptor


def read_start(path: Path, max_bytes: int) -> bytes:
    """The beginning of a file."""
    descriptor = open_regular(path)
    try:
        return os.pread(descriptor, max_bytes, 0)
    finally:
        os.close(descriptor)


def read_end(path: Path, max_bytes: int) -> bytes:
    """The end of a file, however long it is; nothing if it cannot be read."""
    try:
        descriptor = open_regular(path)
    except OSError:
        return b""
    try:
        return os.pread(descriptor, max_bytes, max(os.fstat(descriptor).st_size - max_bytes, 0))
    finally:
        os.close(descriptor)
