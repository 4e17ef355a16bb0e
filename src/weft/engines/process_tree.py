"""What Linux offers so that no process is left behind: death signals, adopted orphans, the process tree."""

from __future__ import annotations

import ctypes
import os
import signal
from dataclasses import dataclass
from pathlib import Path

PR_SET_PDEATHSIG = 1
PR_SET_NAME = 15
PR_SET_CHILD_SUBREAPER = 36


def die_with_parent(parent_pid: int) -> None:
    """Have the kernel kill this process when its parent dies, however the parent dies."""
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:  # it died before the kernel was asked
        os.kill(os.getpid(), signal.SIGKILL)


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent dies, so that they can be found and ended."""
    _prctl(PR_SET_CHILD_SUBREAPER, 1)


def rename(name: str) -> None:
    """The name that ``ps`` and ``top`` show for this process; a fork would bear its parent's."""
    _prctl(PR_SET_NAME, ctypes.create_string_buffer(name.encode()[:15]))


def _prctl(option: int, value: int | ctypes.Array[ctypes.c_char]) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl({option}, {value}): {os.strerror(number)}")


def num_threads() -> int:
    """Threads of this process, also those that Python knows nothing of."""
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
        if entry.name.isdigit() and (parent := _parent(int(entry.name))) is not None:
            children.setdefault(parent, []).append(int(entry.name))
    return children


def _parent(pid: int) -> int | None:
    found = standing(pid)
    return None if found is None else found.parent


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a living process stands among the others."""

    parent: int
    session: int
    start_ticks: int  # since the machine was started: tells two processes of one pid apart


def standing(pid: int) -> Standing | None:
    """What the kernel says of a process; None when it has ended, even if nobody has waited for it yet."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The name stands in brackets and may itself hold brackets and blanks: fields are counted from the last one.
    fields = stat[stat.rindex(")") + 2 :].split()
    if fields[0] in "ZX":
        return None
    return Standing(parent=int(fields[1]), session=int(fields[3]), start_ticks=int(fields[19]))


def stopped_among(pid: int) -> int | None:
    """A process stopped by a signal: this one or one of its children; None if all may run."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        children = []
    return next((one for one in (pid, *map(int, children)) if _letter(one) == "T"), None)


def _letter(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""


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
