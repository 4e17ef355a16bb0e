"""Identifies processes.  A pid alone is not enough, because the kernel reuses pids.

[Note: whose process is it]
We send signals only to processes that are known to be ours.  A keeper is identified by pid, start time and boot.  What
a dead keeper left behind is identified by two marks together: this engine's mark in its environment (the kernel keeps
the environment a program was started with; forks share it), and either the keeper's session or the job's variables.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from weft.core.worker_environment import ATTEMPT, JOB_ID
from weft.engines import process_tree

MARK = "WEFT_ENGINE"
"""Environment variable of every process of an engine; its value is the engine's folder."""


@cache
def boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


@dataclass(frozen=True, slots=True)
class Process:
    """Identifies one process; no other process, past or future, is equal to it."""

    pid: int
    start_ticks: int
    boot_id: str

    @staticmethod
    def this() -> Process:
        return Process.of(os.getpid()) or Process(os.getpid(), 0, boot_id())

    @staticmethod
    def of(pid: int) -> Process | None:
        """The process that has this pid now."""
        found = process_tree.live_process(pid)
        return None if found is None else Process(pid, found.start_ticks, boot_id())

    def open(self) -> int | None:
        """A handle that becomes readable when the process ends; None if it has ended already."""
        try:
            handle = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return None
        is_same = False
        try:
            is_same = Process.of(self.pid) == self  # checked after opening: then the handle means what we checked
        finally:
            if not is_same:
                os.close(handle)
        return handle if is_same else None

    def signal(self, *signums: int) -> None:
        """Send signals, unless this process has ended."""
        handle = self.open()
        if handle is None:
            return
        try:
            for signum in signums:
                signal.pidfd_send_signal(handle, signum)
        except ProcessLookupError:
            return
        finally:
            os.close(handle)


def left_behind(keeper: Process | None, mark: str, job_id: str, attempt: int, folder: Path) -> list[Process]:
    """Processes of an attempt whose keeper is dead, or unknown: then they are found by their output files."""
    if keeper is not None and keeper.boot_id != boot_id():
        return []
    own = {f"{JOB_ID}={job_id}".encode(), f"{ATTEMPT}={attempt}".encode()}
    found = []
    for pid, session, environment in of_this_user():
        if f"{MARK}={mark}".encode() not in environment or pid == os.getpid():
            continue
        is_of_keeper = keeper is not None and session == keeper.pid
        if is_of_keeper or own <= environment or (keeper is None and _writes_into(pid, folder)):
            process = Process.of(pid)
            if process is not None:
                found.append(process)
    return found


def _writes_into(pid: int, folder: Path) -> bool:
    """Whether its standard output or error is a file in this folder, even one that was deleted since."""
    for descriptor in (1, 2):
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/{pid}/fd/{descriptor}").startswith(f"{folder}/"):
                return True
    return False


def of_this_user() -> Iterator[tuple[int, int, set[bytes]]]:
    """Pid, session and environment of every process that we may inspect."""
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit():
            continue
        pid = int(entry.name)
        found = process_tree.live_process(pid)
        try:
            environment = set(Path(entry.path, "environ").read_bytes().split(b"\0"))
        except (PermissionError, FileNotFoundError, ProcessLookupError):  # another user's, or it just ended
            continue
        if found is not None:
            yield pid, found.session, environment
