"""Listening to the engine: what it tells, when it is to be asked, and attempts that do not get on."""

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

_ASK_EVERY_S = 0.5
"""An engine that cannot say when it has news."""
_LOOK_EVERY_S = 5.0
"""Any engine, while jobs have workers: for what nobody tells, such as a process that was stopped."""
_TRY_AGAIN_S = 1.0


class EngineNews:
    """The loop's ear.  An engine that fails is asked again after a while, and never ends the loop."""

    def __init__(self, engine: Engine, selector: selectors.BaseSelector, faults: Faults, metrics: Metrics) -> None:
        self._engine, self._selector, self._faults, self._metrics = engine, selector, faults, metrics
        self._is_heard = False
        self.due_s = -math.inf
        """When it is to be asked, news or not."""
        self.hints: Mapping[tuple[str, int], str] = {}
        """Attempts that do not get on, and why."""
        self._listen(True)

    def poll(self, now_s: float, descriptors: set[int], state: State) -> Sequence[EngineEvent]:
        """What became of attempts, if it is time to ask."""
        if now_s < self.due_s and not (self._is_heard and self._engine.fileno() in descriptors):
            return ()
        self._listen(True)
        try:
            events = self._engine.poll()
            self._note(self._engine.hints())
        except Exception as error:
            # Its descriptor may stay readable for as long as it fails: not to be listened to until then.
            self._faults.note("engine.poll", error)
            self._metrics.engine_errors.inc()
            self._listen(False)
            self.due_s = now_s + _TRY_AGAIN_S
            return ()
        self.plan(now_s, state)
        return events

    def plan(self, now_s: float, state: State) -> None:
        """When to ask next; jobs may have come or gone."""
        if not any(job.devices for job in state.jobs.active.values()):
            self.due_s = math.inf
        elif self._engine.fileno() < 0:
            self.due_s = now_s + _ASK_EVERY_S
        else:
            self.due_s = now_s + (_TRY_AGAIN_S if self.hints else _LOOK_EVERY_S)

    def _note(self, hints: Mapping[tuple[str, int], str]) -> None:
        for (job_id, attempt), words in hints.items():
            if self.hints.get((job_id, attempt)) != words:
                _log.warning("attempt %d of job %s: %s", attempt, job_id, words)
        self.hints = dict(hints)

    def _listen(self, wanted: bool) -> None:
        if wanted != self._is_heard and self._engine.fileno() >= 0:
            if wanted:
                self._selector.register(self._engine.fileno(), selectors.EVENT_READ)
            else:
                self._selector.unregister(self._engine.fileno())
            self._is_heard = wanted
