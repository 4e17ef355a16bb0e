"""Gates for tests: one that two processes share through files, and one that only records calls."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from weft.process import gate
from weft.process.turns import TURNS


class FileGate:
    """One device, one lock file; a waiter holds a second one."""

    def __init__(self, folder: Path, device: int) -> None:
        self._device = os.open(folder / f"device{device}", os.O_RDWR | os.O_CREAT)
        self._queue = os.open(folder / f"queue{device}", os.O_RDWR | os.O_CREAT)
        self._holds = False
        self.num_turns = 0

    @property
    def contended(self) -> bool:
        return self._is_taken(self._queue) or (not self._holds and self._is_taken(self._device))

    @property
    def would_wait(self) -> bool:
        return self.contended

    def acquire(self) -> None:
        if not self._holds:
            fcntl.flock(self._queue, fcntl.LOCK_EX)
            fcntl.flock(self._device, fcntl.LOCK_EX)
            fcntl.flock(self._queue, fcntl.LOCK_UN)
            self._holds = True
            self.num_turns += 1

    def release(self, *, briefly: bool = False) -> None:
        if self._holds:
            fcntl.flock(self._device, fcntl.LOCK_UN)
            self._holds = False

    def close(self) -> None:
        os.close(self._device)
        os.close(self._queue)

    def _is_taken(self, file: int) -> bool:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        fcntl.flock(file, fcntl.LOCK_UN)
        return False


class NotedGate:
    """Grants at once and writes down what it was asked; ``contended`` and ``filled`` are what the test says."""

    def __init__(self, contended: bool = False, on_release: Callable[[], None] = lambda: None) -> None:
        self.contended = contended
        self.filled = False
        """Whether another process is waiting."""
        self.events: list[str] = []
        self.holds = False
        self.on_release = on_release

    def acquire(self) -> None:
        if not self.holds:
            self.events.append("acquire")
        self.holds = True

    def release(self, *, briefly: bool = False) -> None:
        if self.holds:
            self.events.append("release")
            self.holds = False
            self.on_release()

    @property
    def would_wait(self) -> bool:
        return self.contended or self.filled

    def note(self, event: str) -> None:
        self.events.append(event)


@contextlib.contextmanager
def behind(shared: gate.Gate) -> Iterator[None]:
    """This process computes behind ``shared`` inside the block."""
    from weft.crossover.hooks_collectives import watch_collectives

    gate.install(shared)
    watch_collectives()
    try:
        yield
    finally:
        TURNS.rest()
        gate.install(gate.OPEN)
        TURNS._forget()
