"""Whose end is waited for: handles of processes, by attempt, on one epoll handle."""

from __future__ import annotations

import os
import select

from weft.engines.local.attempt import Attempt
from weft.engines.local.process import Process


class Watches:
    """Processes of attempts that are to be looked at again when these end."""

    def __init__(self, epoll: select.epoll) -> None:
        self._epoll = epoll
        self._handles: dict[Process, int] = {}
        self._ends: dict[int, tuple[Attempt, Process]] = {}

    def watch(self, process: Process, known: Attempt) -> bool:
        """Have the end of this process noticed.  False when it has ended already."""
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
        """Whose process this handle was of; it is watched no more."""
        if handle not in self._ends:
            return None
        known, process = self._ends[handle]
        self.unwatch(process)
        return known

    def close(self) -> None:
        for process in list(self._handles):
            self.unwatch(process)
