"""The controller's state, and the only way to change it: reduce events, write them, then adopt the result.

Events are reduced before they are written: one that the reducer fails on never gets into the journal, and its request
is refused instead of acknowledged.  Nothing is answered before it is durable.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from weft.control.invariants import check
from weft.control.reducer import reduce
from weft.control.state import State
from weft.core.actions import Action
from weft.core.events import Event
from weft.daemon.faults import AN_EVENT, Faults
from weft.daemon.history import History
from weft.daemon.metrics import Metrics
from weft.errors import StoreError
from weft.store import Journal

_log = logging.getLogger(__name__)

_TRY_AGAIN_S = 1.0


@dataclass
class Batch:
    """Events that are written together; ``state`` is the one after all of them."""

    state: State
    paranoid: bool = False
    """Check all invariants after each event."""
    events: list[Event] = field(default_factory=list)
    states: list[State] = field(default_factory=list)
    """The state after each event."""
    actions: list[Action] = field(default_factory=list)
    answers: list[tuple[Future[Any], Any]] = field(default_factory=list)
    """Set once the events are durable."""

    def add(self, events: Sequence[Event]) -> None:
        """Add all of them; raises, and adds none, if one cannot be applied."""
        state, actions, states = self.state, list[Action](), list[State]()
        for event in events:
            state, follow_up = reduce(state, event)
            if self.paranoid:
                check(state)
            actions.extend(follow_up)
            states.append(state)
        self.state = state
        self.events.extend(events)
        self.states.extend(states)
        self.actions.extend(actions)


class CommitLog:
    """Used by one thread.  Others may read ``state``, which is replaced as a whole and never modified."""

    def __init__(
        self,
        journal: Journal,
        history: History,
        metrics: Metrics,
        faults: Faults,
        state: State,
        *,
        paranoid: bool = False,
    ) -> None:
        self.state = state
        self.waits_for_disk = ""
        """Why nothing can be written now, if so."""
        self.try_again_s = -math.inf
        self.journal, self.metrics, self.faults = journal, metrics, faults
        self._history = history
        self._paranoid = paranoid

    def batch(self, events: Sequence[Event] = ()) -> Batch:
        """A batch of these events, without any that cannot be applied: the engine will report those again to the next
        controller."""
        batch = Batch(self.state, self._paranoid)
        for event in events:
            with self.faults.contained(AN_EVENT, getattr(event, "job_id", None)):
                batch.add([event])
        return batch

    def write(self, batch: Batch, now_s: float) -> bool:
        """Make the events durable, adopt the state after them, and answer; ``False`` if they could not be written."""
        if batch.events:
            try:
                began = time.perf_counter()
                self.journal.append(batch.events)
                self.metrics.commit_s.observe(time.perf_counter() - began)
            except Exception as error:
                self._not_written(error, batch, now_s)
                return False
            self.try_again_s = -math.inf
            self.waits_for_disk = ""
        self.state = batch.state
        for event in batch.events:
            self._history.note(event)
            self.metrics.events.labels(type(event).__name__).inc()
        for answer, result in batch.answers:
            answer.set_result(result)
        return True

    def _not_written(self, error: Exception, batch: Batch, now_s: float) -> None:
        """Nothing was acknowledged: engine events are retried, and clients have to repeat their requests."""
        _log.error("%s; retrying every second", error, exc_info=None if isinstance(error, StoreError) else error)
        self.waits_for_disk = str(error)
        self.metrics.store_errors.inc()
        for answer, _ in batch.answers:
            answer.set_exception(error)
        self.try_again_s = now_s + _TRY_AGAIN_S
