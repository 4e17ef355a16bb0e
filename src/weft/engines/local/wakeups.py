"""What wakes the engine: nudges from keepers, and processes that end."""

from __future__ import annotations

import contextlib
import os
import select
from collections.abc import Iterator
from pathlib import Path

from weft.engines.local.attempt import Attempt
from weft.engines.local.process import Process


class Nudges:
    """The engine's end of the fifo.  A line is the name of an order, a tab, and what is wrong with it, if anything."""

    def __init__(self, path: Path) -> None:
        if path.exists() and not path.is_fifo():
            path.unlink()
        with contextlib.suppress(FileExistsError):
            os.mkfifo(path, 0o600)
        # Open for writing too: it must not read as closed when the last keeper exits, and we can nudge ourselves.
        self._file = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)

    def fileno(self) -> int:
        return self._file

    def add(self, name: str) -> None:
        """As if a keeper had news about this order."""
        with contextlib.suppress(BlockingIOError):  # full: there is something to read already
            os.write(self._file, f"{name}\t\n".encode())

    def read(self) -> Iterator[tuple[str, str]]:
        """Names and troubles that are pending."""
        for line in os.read(self._file, 1 << 16).decode(errors="replace").split("\n"):
            name, _, trouble = line.partition("\t")
            yield name, trouble

    def close(self) -> None:
        os.close(self._file)


class Watches:
    """Processes whose end makes the engine check their attempt again; all on one epoll handle."""

    def __init__(self, epoll: select.epoll) -> None:
        self._epoll = epoll
        self._handles: dict[Process, int] = {}
        self._ends: dict[int, tuple[Attempt, Process]] = {}

    def watch(self, process: Process, known: Attempt) -> bool:
        """Returns False if the process has already ended."""
        if process in self._handles:
            return True
        handle = process.open()
        if handle is None:
            return False
        self._handles[process] = handle
        self._ends[handle] = known, process
        self._epoll.register(handle, select.EPOLLIN)
        return True

    def unwatch(self, process: Process) -> None:
        handle = self._handles.pop(process, None)
        if handle is not None:
            del self._ends[handle]
            self._epoll.unregister(handle)
            os.close(handle)

    def ended(self, handle: int) -> Attempt | None:
        """The attempt whose process had this handle, which is no longer watched."""
        if handle not in self._ends:
            return None
        known, process = self._ends[handle]
        self.unwatch(process)
        return known

    def close(self) -> None:
        for process in list(self._handles):
            self.unwatch(process)
