"""What open dashboards show, computed once for all of them; each receives only what changed since its last request.

A job that did not change is not encoded again, one whose row did not change is not sent again, and readers of the same
version get the same bytes.  So the cost of a dashboard depends on what changes; for all other jobs, a look at each.
"""

from __future__ import annotations

import json
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from weft.control.state import Job
from weft.daemon.api.row_texts import RowText
from weft.daemon.api.rows import decision_row, health_row, job_detail, node_row, shown_place
from weft.daemon.api.sessions import Permission
from weft.daemon.contract import Decision
from weft.daemon.service import Controller

UPDATE_EVERY_S = 0.5
"""At most this often, however many readers there are."""
_REST_PER_UPDATE = 50.0
"""Updates take at most about a fiftieth of the time, however many jobs there are."""
_MAX_REST_S = 5.0
"""The first update encodes every job; those after it are cheap."""
KEPT_DECISIONS = 1000


class Board:
    """Versions of everything; thread-safe."""

    def __init__(self, controller: Controller, clock: Callable[[], float] = time.monotonic) -> None:
        self._controller, self._clock = controller, clock
        self._lock = threading.Lock()
        self._begun = secrets.token_hex(4)
        """Tells this process's versions from those of an earlier one."""
        self._version = 0
        self._due_s = float("-inf")
        self._jobs: dict[str, Job] = {}
        self._texts: dict[str, RowText] = {}
        self._places: dict[str, tuple[int | None, float | None]] = {}
        """Of each waiting job, as its row shows it."""
        self._rows: dict[str, tuple[int, str]] = {}
        """Version and JSON of each job, in order of their last change."""
        self._nodes = (0, "[]")
        self._decisions: deque[tuple[int, str]] = deque(maxlen=KEPT_DECISIONS)
        self._last_decision: Decision | None = None
        self._whole_from = 0
        """Readers of an older version get everything."""
        self._answers: dict[tuple[int, Permission], bytes] = {}

    def changes(self, since: str, permission: Permission = Permission.CHANGE) -> bytes:
        """JSON: what changed after version ``since``; everything if that is not a version of this board."""
        return self.latest(since, permission)[1]

    def latest(self, since: str, permission: Permission) -> tuple[str, bytes]:
        """The version that the changes lead to, and the changes."""
        with self._lock:
            self._update_if_due()
            begun, _, number = since.partition("-")
            known = begun == self._begun and number.isdecimal() and len(number) < 20
            before = int(number) if known and self._whole_from <= int(number) <= self._version else -1
            key = before, permission
            answer = self._answers.get(key)
            if answer is None:
                answer = self._answers[key] = self._answer(before, permission)
            return self.version, answer

    def refresh(self) -> None:
        """Look for changes, unless that was done very recently."""
        with self._lock:
            self._update_if_due()

    def _update_if_due(self) -> None:
        now_s = self._clock()
        if now_s >= self._due_s:
            # CPU time: on a busy machine an update takes long without costing more.
            began_s = time.thread_time()
            self._update()
            rest_s = min(_REST_PER_UPDATE * (time.thread_time() - began_s), _MAX_REST_S)
            self._due_s = now_s + max(UPDATE_EVERY_S, rest_s)

    @property
    def version(self) -> str:
        """Of the last update."""
        return f"{self._begun}-{self._version}"

    def _update(self) -> None:
        version = self._version + 1
        jobs = {job.id: job for job in self._controller.jobs()}
        queue = self._controller.queue()
        if self._jobs.keys() - jobs.keys():  # purged: rare, so every reader starts over
            self._rows, self._texts, self._jobs, self._whole_from = {}, {}, {}, version
        places = {job_id: shown_place(place) for job_id, place in queue.items()}
        moved = {job_id for job_id, _ in places.items() ^ self._places.items()}
        changed, now_s = False, time.time()
        for job_id, job in jobs.items():
            before = self._jobs.get(job_id)
            is_same = before is job or before == job
            if is_same and job_id not in moved:
                continue
            if not is_same:
                self._texts[job_id] = RowText({**job_detail(job, queue), "number": job.number})
            self._rows.pop(job_id, None)
            self._rows[job_id] = (version, self._texts[job_id].at(job, queue, now_s))
            changed = True
        self._jobs, self._places = jobs, places
        nodes = _text([node_row(node) for node in self._controller.nodes()])
        if nodes != self._nodes[1]:
            self._nodes = (version, nodes)
            changed = True
        for decision in self._new_decisions():
            self._decisions.append((version, _text(decision_row(decision))))
            changed = True
        if changed or not self._version:
            self._version = version
            self._answers.clear()

    def _new_decisions(self) -> list[Decision]:
        kept = self._controller.decisions(KEPT_DECISIONS)
        last, new = self._last_decision, []
        for decision in reversed(kept):
            if decision is last:
                break
            new.append(decision)
        self._last_decision = kept[-1] if kept else None
        return new[::-1]

    def _answer(self, before: int, permission: Permission) -> bytes:
        jobs = ",".join(_since(before, self._rows.values()))
        decisions = ",".join(_since(before, self._decisions))
        nodes = self._nodes[1] if self._nodes[0] > before else "null"
        controller, is_whole = self._controller, before < 0
        health = health_row(controller.policy_name, controller.warnings(), permission) if is_whole else None
        head = {"version": self.version, "whole": is_whole, "health": health}
        # Assembled from the rows' JSON, which is made once for all readers.
        return f'{_text(head)[:-1]},"jobs":[{jobs}],"nodes":{nodes},"decisions":[{decisions}]}}'.encode()


def _since(before: int, versions: Iterable[tuple[int, str]]) -> list[str]:
    """What is newer than ``before``, oldest first."""
    found: list[str] = []
    for version, text in reversed(list(versions)):
        if version <= before:
            break
        found.append(text)
    return found[::-1]


def _text(value: Any) -> str:
    return json.dumps(value, allow_nan=False, separators=(",", ":"))
