"""What makes the next start quick: snapshots of the state and measured speeds.  Nothing acknowledged hangs on them."""

from __future__ import annotations

import json
import logging
import math

from weft.control.state import State
from weft.daemon.home import Home, write_whole
from weft.daemon.knowledge import Knowledge
from weft.errors import StoreError
from weft.store import Journal

_log = logging.getLogger(__name__)

_SNAPSHOT_EVERY = 2000
_SAVE_KNOWLEDGE_EVERY_S = 30.0


class Saving:
    """Of one controller.  What cannot be saved is logged and tried again later."""

    def __init__(self, home: Home, journal: Journal, knowledge: Knowledge) -> None:
        self._home, self._journal, self._knowledge = home, journal, knowledge
        self._snapshot_at = _SNAPSHOT_EVERY
        self._changed_s = math.inf

    @property
    def due_s(self) -> float:
        """When speeds are to be saved."""
        return self._changed_s + _SAVE_KNOWLEDGE_EVERY_S

    def knowledge_changed(self, now_s: float) -> None:
        self._changed_s = min(self._changed_s, now_s)

    def snapshot_if_due(self, state: State) -> None:
        if self._journal.num_events_since_snapshot >= self._snapshot_at:
            self.snapshot(state)

    def snapshot(self, state: State) -> None:
        self._snapshot_at = self._journal.num_events_since_snapshot + _SNAPSHOT_EVERY
        try:
            self._journal.save_snapshot(self._journal.seq, state)
            self._snapshot_at = _SNAPSHOT_EVERY
        except (StoreError, OSError) as error:
            _log.warning("no snapshot, the journal stays longer: %s", error)

    def knowledge_if_due(self, now_s: float) -> None:
        if now_s >= self.due_s:
            self.knowledge()

    def knowledge(self) -> None:
        self._changed_s = math.inf
        try:
            write_whole(self._home.knowledge_file, json.dumps(self._knowledge.document()).encode())
        except OSError as error:
            _log.warning("measured speeds were not saved: %s", error)
