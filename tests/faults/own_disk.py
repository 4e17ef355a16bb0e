"""A small disk that only this process and its children see, and a process that file permissions apply to."""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterator
from pathlib import Path

DISK_BYTES = 64 << 20

_CLONE_NEWNS, _CLONE_NEWUSER = 0x00020000, 0x10000000
_MS_REC, _MS_PRIVATE = 0x4000, 0x40000
_PR_CAPBSET_DROP = 24
_CAPABILITY_VERSION = 0x20080522
_OVERRIDES = 0b110
"""CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH: what lets root read and write every file."""

_libc = ctypes.CDLL(None, use_errno=True)


def mount_own_disk(folder: Path) -> bool:
    """A tmpfs at ``folder`` in a mount namespace of our own; needs root, or user namespaces.  Whether there is one.

    It is gone with the last process that sees it.
    """
    uid, gid = os.getuid(), os.getgid()
    if _libc.unshare(_CLONE_NEWNS) != 0:
        if _libc.unshare(_CLONE_NEWNS | _CLONE_NEWUSER) != 0:
            return False
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"0 {uid} 1")
        Path("/proc/self/gid_map").write_text(f"0 {gid} 1")
    size = f"size={DISK_BYTES},mode=700".encode()
    return (
        _libc.mount(b"none", b"/", None, _MS_REC | _MS_PRIVATE, None) == 0
        and _libc.mount(b"weft-faults", os.fsencode(folder), b"tmpfs", 0, size) == 0
    )


def obey_permissions() -> None:
    """From now on this process and its children may only open files whose mode lets them, as root too."""
    for capability in (1, 2):
        _libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0)  # refused to those who never had it
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0)
    sets = (ctypes.c_uint32 * 6)()
    if _libc.capget(header, sets) == 0:
        for number in range(3):  # effective, permitted, inheritable; the upper half follows
            sets[number] &= ~_OVERRIDES
        _libc.capset(header, sets)


@contextlib.contextmanager
def mode_zero(path: Path) -> Iterator[None]:
    """Nobody may open ``path`` meanwhile."""
    mode = path.lstat().st_mode & 0o7777
    path.chmod(0)
    try:
        yield
    finally:
        with contextlib.suppress(FileNotFoundError):  # replaced by its owner, or deleted
            path.chmod(mode)
