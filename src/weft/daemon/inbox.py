"""What came in and is not written yet: requests of other threads, news of the engine, progress reports."""

from __future__ import annotations

import math
import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from weft.control.codec import event_to_json
from weft.control.state import State
from weft.core.events import Event
from weft.daemon.commit_log import Batch
from weft.daemon.contract import StoppingError
from weft.daemon.faults import AN_EVENT, Faults
from weft.daemon.progress_batch import ProgressBatch
from weft.errors import ControllerError

_MAX_AT_ONCE = 500

Maker = Callable[[State, float], tuple[Sequence[Event], Any]]
"""From state and time to the events of a request and the answer to it; raises if it cannot be met."""


@dataclass(frozen=True, slots=True)
class Request:
    """Asked by another thread; answered when its events are durable."""

    make: Maker
    answer: Future[Any]

    def add_to(self, batch: Batch, state: State, now_s: float, faults: Faults) -> None:
        """Put its events and its answer into the batch; if it cannot be met it is answered at once."""
        try:
            made, result = self.make(state, now_s)
        except Exception as error:
            self.answer.set_exception(error)
            return
        try:
            for event in made:
                event_to_json(event)  # what cannot be written is its sender's problem alone
            batch.add(made)
        except Exception as error:
            faults.note(AN_EVENT, error)
            words = f"internal error, nothing was changed: {error}; see controller.log for details"
            self.answer.set_exception(ControllerError(words))
            return
        batch.answers.append((self.answer, result))


class Inbox:
    """Requests are put by any thread and wake the loop; everything else is added by the loop itself."""

    def __init__(self) -> None:
        self.told: list[Event] = []
        """By the engine, or found out by the controller itself."""
        self.progress = ProgressBatch()
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
        """When what is here is to be written, given when writing may be tried again."""
        due_s = max(self.progress.due_s, try_again_s)
        return min(due_s, try_again_s) if self.told else due_s

    def put(self, make: Maker) -> Future[Any]:
        answer: Future[Any] = Future()
        with self._lock:
            if self._closed:
                raise StoppingError("the controller is shutting down and accepts nothing new: run `weft up` first")
            self._requests.append(Request(make, answer))
        self.wake()
        return answer

    def take_requests(self) -> list[Request]:
        with self._lock:
            return [self._requests.popleft() for _ in range(min(len(self._requests), _MAX_AT_ONCE))]

    def take_told(self, now_s: float) -> tuple[list[Event], list[Event]]:
        """What is to be written now: progress, if it is due, and what was told, which must not get lost."""
        told, self.told = self.told, []
        return list(self.progress.take(now_s)) if now_s >= self.progress.due_s else [], told

    def put_back(self, told: Sequence[Event]) -> None:
        """They could not be written."""
        self.told = [*told, *self.told]

    def take_progress(self, now_s: float) -> list[Event]:
        """At the end: all of it, due or not."""
        return list(self.progress.take(now_s)) if self.progress.due_s < math.inf else []

    def refuse_more(self) -> None:
        """From now on no request is accepted; those that are here are still met."""
        with self._lock:
            self._closed = True

    def close(self) -> None:
        """Nothing will be met any more."""
        self.refuse_more()
        while waiting := self.take_requests():
            for request in waiting:
                error = StoppingError("the controller shut down before it did anything: run `weft up` and try again")
                request.answer.set_exception(error)
