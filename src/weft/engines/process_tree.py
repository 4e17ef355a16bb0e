"""Linux features that keep processes from being left behind: death signals, adopted orphans, the process tree."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
from dataclasses import dataclass
from pathlib import Path

PR_SET_PDEATHSIG = 1
PR_SET_NAME = 15
PR_SET_CHILD_SUBREAPER = 36


def die_with_parent(parent_pid: int) -> None:
    """Have the kernel kill this process when its parent dies, for whatever reason."""
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:  # it died before we asked
        os.kill(os.getpid(), signal.SIGKILL)


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent dies, so that we can find and kill it."""
    _prctl(PR_SET_CHILD_SUBREAPER, 1)


def rename(name: str) -> None:
    """Set the name that ``ps`` and ``top`` show for this process; a fork has its parent's."""
    _prctl(PR_SET_NAME, ctypes.create_string_buffer(name.encode()[:15]))


def _prctl(option: int, value: int | ctypes.Array[ctypes.c_char]) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl({option}, {value}): {os.strerror(number)}")


def num_threads() -> int:
    """Threads of this process, including those that Python does not know about."""
    return len(os.listdir("/proc/self/task"))


def descendants(pid: int) -> list[int]:
    """All living processes below ``pid``, children first."""
    children = _children_by_parent()
    found: list[int] = []
    layer = children.get(pid, [])
    while layer:
        found += layer
        layer = [below for above in layer for below in children.get(above, [])]
    return found


def children(pid: int) -> list[int]:
    """The living processes whose parent is ``pid``."""
    return _children_by_parent().get(pid, [])


def _children_by_parent() -> dict[int, list[int]]:
    children: dict[int, list[int]] = {}
    for entry in os.scandir("/proc"):
        if entry.name.isdigit() and (process := live_process(int(entry.name))) is not None:
            children.setdefault(process.parent, []).append(int(entry.name))
    return children


@dataclass(frozen=True, slots=True)
class LiveProcess:
    """What the kernel says about a process that has not ended."""

    parent: int
    session: int
    start_ticks: int  # since boot: tells apart two processes with the same pid


def live_process(pid: int) -> LiveProcess | None:
    """None if the process has ended, even if it has not been reaped yet."""
    fields = _stat(pid)
    if not fields or fields[0] in "ZX":
        return None
    return LiveProcess(parent=int(fields[1]), session=int(fields[3]), start_ticks=int(fields[19]))


def stopped_among(pid: int) -> int | None:
    """The process that was stopped by a signal, this one or one of its children; None if there is none."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        children = []
    return next((one for one in (pid, *map(int, children)) if _stat(one)[:1] == ["T"]), None)


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat after the process's name, its state first; empty if the process is gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return []
    # The name is in parentheses and may itself contain parentheses and spaces: count from the last one.
    return stat.rpartition(")")[2].split()


def sweep() -> None:
    """Kill and reap every process below this one.  Repeats, since a dying process may just have forked."""
    while True:
        for pid in descendants(os.getpid()):
            kill(pid, signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def kill(pid: int, signum: int) -> None:
    """Send a signal to a process that may have ended already."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signum)


def kill_group(pgid: int, signum: int) -> None:
    """Send a signal to a process group that may have ended already."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pgid, signum)
