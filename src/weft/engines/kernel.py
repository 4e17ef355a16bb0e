"""What Linux offers so that no process is left behind: death signals, adopted orphans, the process tree."""

from __future__ import annotations

import ctypes
import os
import signal
from pathlib import Path

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36


def die_with_parent(parent_pid: int) -> None:
    """Have the kernel kill this process when its parent dies, however the parent dies."""
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:  # it died before the kernel was asked
        os.kill(os.getpid(), signal.SIGKILL)


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent dies, so that they can be found and ended."""
    _prctl(PR_SET_CHILD_SUBREAPER, 1)


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl({option}, {value}): {os.strerror(number)}")


def num_threads() -> int:
    """Threads of this process, also those that Python knows nothing of."""
    return len(os.listdir("/proc/self/task"))


def descendants(pid: int) -> list[int]:
    """All living processes below ``pid``, children first."""
    children: dict[int, list[int]] = {}
    for entry in os.scandir("/proc"):
        if entry.name.isdigit() and (parent := _parent(int(entry.name))) is not None:
            children.setdefault(parent, []).append(int(entry.name))
    found: list[int] = []
    layer = children.get(pid, [])
    while layer:
        found += layer
        layer = [below for above in layer for below in children.get(above, [])]
    return found


def _parent(pid: int) -> int | None:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The name stands in brackets and may itself hold brackets and blanks: fields are counted from the last one.
    state, parent = stat[stat.rindex(")") + 2 :].split()[:2]
    return None if state in "ZX" else int(parent)


def sweep() -> None:
    """Kill and reap everything below this process. Repeats, since a dying process may just have forked."""
    while True:
        for pid in descendants(os.getpid()):
            kill(pid, signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def kill(pid: int, signum: int) -> None:
    """Send a signal to a process that may be gone already."""
    try:
        os.kill(pid, signum)
    except ProcessLookupError:
        return


def kill_group(pgid: int, signum: int) -> None:
    """Send a signal to a process group that may be gone already."""
    try:
        os.killpg(pgid, signum)
    except ProcessLookupError:
        return
