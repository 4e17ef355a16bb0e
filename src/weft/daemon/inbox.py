"""What has arrived and is not written yet: requests from other threads, engine events, progress reports."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from weft.control.codec import event_to_json
from weft.control.state import State
from weft.core.events import Event, ProgressReported
from weft.daemon.commit_log import Batch
from weft.daemon.contract import StoppingError
from weft.daemon.faults import AN_EVENT, Faults
from weft.daemon.newest_reports import NewestReports
from weft.errors import ControllerError

_MAX_REQUESTS_PER_BATCH = 500

Maker = Callable[[State, float], tuple[Sequence[Event], Any]]
"""From state and time to a request's events and answer; raises if the request cannot be fulfilled."""


@dataclass(frozen=True, slots=True)
class Request:
    """Put by another thread; answered when its events are durable."""

    make: Maker
    answer: Future[Any]

    def add_to(self, batch: Batch, state: State, now_s: float, faults: Faults) -> None:
        """Add its events and its answer to the batch; a request that cannot be fulfilled is answered immediately."""
        try:
            made, result = self.make(state, now_s)
        except Exception as error:
            self.answer.set_exception(error)
            return
        try:
            for event in made:
                event_to_json(event)  # an event that cannot be encoded must fail only its own request
            batch.add(made)
        except Exception as error:
            faults.note(AN_EVENT, error)
            message = f"internal error, nothing was changed: {error}; see controller.log for details"
            self.answer.set_exception(ControllerError(message))
            return
        batch.answers.append((self.answer, result))


class Inbox:
    """Any thread may put requests, which wake the loop; everything else is added by the loop itself."""

    def __init__(self, reports: NewestReports) -> None:
        self.events: list[Event] = []
        """From the engine, or made by the controller itself; they must not get lost."""
        self._reports = reports
        self._requests: deque[Request] = deque()
        self._lock = threading.Lock()
        self._closed = False
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def fileno(self) -> int:
        """Readable when there is something to do."""
        return self._wake

    def wake(self) -> None:
        os.eventfd_write(self._wake, 1)

    def woken(self) -> None:
        os.eventfd_read(self._wake)

    @property
    def has_requests(self) -> bool:
        return bool(self._requests)

    def due_s(self, try_again_s: float) -> float:
        """When to write what is here, if writing is possible from ``try_again_s`` on."""
        return try_again_s if self.events else max(self._reports.due_s, try_again_s)

    def put(self, make: Maker) -> Future[Any]:
        answer: Future[Any] = Future()
        with self._lock:
            if self._closed:
                raise StoppingError("the controller is shutting down and accepts no requests: run `weft up` first")
            self._requests.append(Request(make, answer))
        self.wake()
        return answer

    def take_requests(self) -> list[Request]:
        with self._lock:
            return [self._requests.popleft() for _ in range(min(len(self._requests), _MAX_REQUESTS_PER_BATCH))]

    def take_events(self, now_s: float) -> tuple[list[ProgressReported], list[Event]]:
        """What to write now: progress, if it is due, and events."""
        events, self.events = self.events, []
        return self._reports.take(now_s) if now_s >= self._reports.due_s else [], events

    def put_back(self, events: Sequence[Event]) -> None:
        """They could not be written."""
        self.events = [*events, *self.events]

    def refuse_more(self) -> None:
        """Accept no more requests; those already here are still processed."""
        with self._lock:
            self._closed = True

    def close(self) -> None:
        """Reject what is left."""
        self.refuse_more()
        while waiting := self.take_requests():
            for request in waiting:
                error = StoppingError(
                    "the controller shut down before it processed the request: run `weft up` and try again"
                )
                request.answer.set_exception(error)
