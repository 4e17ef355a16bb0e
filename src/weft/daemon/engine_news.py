"""Polls the engine: its events, and attempts that are held up."""

from __future__ import annotations

import logging
import math
import selectors
from collections.abc import Mapping, Sequence

from weft.control.state import State
from weft.core.engine import Engine, EngineEvent
from weft.daemon.faults import Faults
from weft.daemon.metrics import Metrics

_log = logging.getLogger(__name__)

_POLL_EVERY_S = 0.5
"""For an engine that cannot signal when it has news."""
_CHECK_EVERY_S = 5.0
"""For any engine, while jobs have workers: some things, such as a stopped process, cause no news."""
_TRY_AGAIN_S = 1.0


class EngineNews:
    """A failing engine is polled again after a while; it never ends the loop."""

    def __init__(self, engine: Engine, selector: selectors.BaseSelector, faults: Faults, metrics: Metrics) -> None:
        self._engine, self._selector, self._faults, self._metrics = engine, selector, faults, metrics
        self._is_registered = False
        self.due_s = -math.inf
        """When to poll even without news."""
        self.hints: Mapping[tuple[str, int], str] = {}
        """Attempts that are held up, and why."""
        self._listen(True)

    def poll(self, now_s: float, descriptors: set[int], state: State) -> Sequence[EngineEvent]:
        """New events, if it is time to poll."""
        if now_s < self.due_s and not (self._is_registered and self._engine.fileno() in descriptors):
            return ()
        self._listen(True)
        try:
            events = self._engine.poll()
            self._note(self._engine.hints())
        except Exception as error:
            # Its descriptor may stay readable while it fails: do not select on it until it works again.
            self._faults.note("engine.poll", error)
            self._metrics.engine_errors.inc()
            self._listen(False)
            self.due_s = now_s + _TRY_AGAIN_S
            return ()
        self.plan(now_s, state)
        return events

    def plan(self, now_s: float, state: State) -> None:
        """Set the next poll; jobs may have come or gone."""
        if not any(job.devices for job in state.jobs.active.values()):
            self.due_s = math.inf
        elif self._engine.fileno() < 0:
            self.due_s = now_s + _POLL_EVERY_S
        else:
            self.due_s = now_s + (_TRY_AGAIN_S if self.hints else _CHECK_EVERY_S)

    def _note(self, hints: Mapping[tuple[str, int], str]) -> None:
        for (job_id, attempt), words in hints.items():
            if self.hints.get((job_id, attempt)) != words:
                _log.warning("attempt %d of job %s: %s", attempt, job_id, words)
        self.hints = dict(hints)

    def _listen(self, wanted: bool) -> None:
        if wanted != self._is_registered and self._engine.fileno() >= 0:
            if wanted:
                self._selector.register(self._engine.fileno(), selectors.EVENT_READ)
            else:
                self._selector.unregister(self._engine.fileno())
            self._is_registered = wanted
