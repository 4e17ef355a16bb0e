"""An engine without processes: tests say when workers start, end, and fail."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Sequence

from weft.core.engine import LOCAL_NODE, EngineEvent, EngineNode, StartOrder
from weft.core.events import Fate, WorkersExited, WorkersStarted
from weft.errors import EngineError


class ScriptedEngine:
    """Keeps what an engine must keep (core/engine.py, [Note: exactly once]); shared by controllers that follow."""

    def __init__(self, num_devices: int = 4, *, obedient: bool = True) -> None:
        self._num_devices = num_devices
        self.obedient = obedient
        """Whether workers that are asked to stop do so at once."""
        self.orders: dict[tuple[str, int], StartOrder] = {}
        self.seen_nodes = (EngineNode(LOCAL_NODE, num_devices),)
        self.num_starts: dict[tuple[str, int], int] = {}
        self.over: dict[tuple[str, int], WorkersExited] = {}
        self.forgotten: set[tuple[str, int]] = set()
        self.calls: list[tuple[str, str, int]] = []
        self.refuse_starts = False
        self.troubles: dict[tuple[str, int], str] = {}
        self.num_failing_polls = 0
        """How many more times it cannot tell its news."""
        self.between_polls = threading.RLock()
        """Two threads use the engine; hold it to make several changes that one poll must see together."""
        self._news: list[EngineEvent] = []
        self._ready = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def nodes(self) -> tuple[EngineNode, ...]:
        return self.seen_nodes

    def start(self, order: StartOrder) -> None:
        key = (order.job_id, order.attempt)
        self.calls.append(("start", *key))
        if self.refuse_starts:
            raise EngineError("no process can be started: the limit on processes is reached")
        with self.between_polls:  # a test that sees the order may end it: the start must be told first
            if key in self.orders:
                return
            self.orders[key] = order
            self.num_starts[key] = self.num_starts.get(key, 0) + 1
            self._tell(WorkersStarted(0.0, *key))

    def stop(self, job_id: str, attempt: int) -> None:
        self.calls.append(("stop", job_id, attempt))
        if self.obedient:
            self.end(job_id, attempt, Fate.STOPPED, 75)

    def kill(self, job_id: str, attempt: int) -> None:
        self.calls.append(("kill", job_id, attempt))
        self.end(job_id, attempt, Fate.LOST, 137)

    def end(self, job_id: str, attempt: int, fate: Fate, exit_code: int = 0, reason: str = "") -> None:
        """The workers of a running attempt end."""
        key = (job_id, attempt)
        with self.between_polls:
            if key in self.orders and key not in self.over:
                self.over[key] = WorkersExited(0.0, job_id, attempt, fate, exit_code, reason)
                self._tell(self.over[key])

    def running(self) -> list[tuple[str, int]]:
        with self.between_polls:
            return [key for key in self.orders if key not in self.over]

    def poll(self) -> list[EngineEvent]:
        with self.between_polls:
            if self.num_failing_polls > 0:
                self.num_failing_polls -= 1
                raise OSError(24, "Too many open files")
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(self._ready)  # first: what is told from now on makes it readable again
            news, self._news = self._news, []
            return news

    def fileno(self) -> int:
        return self._ready

    def hints(self) -> dict[tuple[str, int], str]:
        return dict(self.troubles)

    def warnings(self) -> Sequence[str]:
        return ()

    def known(self) -> list[tuple[str, int]]:
        with self.between_polls:
            return [key for key in self.orders if key not in self.forgotten]

    def forget(self, job_id: str, attempt: int) -> None:
        self.calls.append(("forget", job_id, attempt))
        self.forgotten.add((job_id, attempt))

    def close(self) -> None:
        """Workers continue: what happens from now on is reported to the next controller."""

    def reopened(self) -> None:
        """What a restarted controller is told: everything that is not forgotten."""
        self.poll()
        for key in self.known():
            self._tell(WorkersStarted(0.0, *key))
            if key in self.over:
                self._tell(self.over[key])

    def _tell(self, event: EngineEvent) -> None:
        with self.between_polls:  # a poll takes the list away: nothing may be added to it after that
            self._news.append(event)
        os.eventfd_write(self._ready, 1)
