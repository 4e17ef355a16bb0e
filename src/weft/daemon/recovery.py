"""What a restarted controller finds: the journal, measured speeds, and workers that kept running without it.

:class:`Saving` writes what makes the next start fast.  Nothing acknowledged depends on it.
"""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from weft.control.invariants import check
from weft.control.node_changes import cluster_of
from weft.control.reducer import reduce
from weft.control.state import State
from weft.core.cluster import Cluster
from weft.core.engine import LOCAL_NODE, Engine
from weft.core.events import CancelRequested, ClockSetBack, Event, JobChanged, JobsPurged, JobSubmitted
from weft.daemon.faults import AN_EVENT, Faults
from weft.daemon.history import History
from weft.daemon.home import Home, write_whole
from weft.daemon.knowledge import Knowledge
from weft.errors import StoreError, UsageError
from weft.store import Journal, copy
from weft.store.journal import REMEDY, unpacked_state

MAX_AHEAD_S = 60.0
"""If the clock was ahead by no more than this, the controller's time stands still until the clock has caught up."""

_SNAPSHOT_EVERY = 2000
_SAVE_KNOWLEDGE_EVERY_S = 30.0

LeftOut = tuple[int, Event, Exception]

_log = logging.getLogger(__name__)


def load_state(
    journal: Journal, engine: Engine, history: History, *, faults: Faults | None = None, accept_loss: bool = False
) -> State:
    """The state after the last event in the journal, on the cluster as it is now."""
    nodes = engine.nodes()
    cluster = cluster_of(nodes)
    left_out: list[LeftOut] = []
    found = replayed(journal, cluster, history, left_out)
    loss = loss_in_words(journal, found, engine.known()) or _unmet_in_words(journal, left_out)
    if loss and not accept_loss:
        raise StoreError(f"{loss}. {REMEDY}")
    if loss:
        _log.warning("%s: accepted", loss)
        copy.put_aside(journal.path)
    for _, event, error in left_out:
        if faults is not None:
            faults.note(AN_EVENT, error, getattr(event, "job_id", None))
    found = _right_clock(journal, found)
    # Nodes that come and go are followed by the loop; the node of this machine was there all along.
    state = on_cluster(found, cluster) if [node.name for node in nodes] == [LOCAL_NODE] else found
    if journal.seq == 0 or found is not state:
        # Later events are about this cluster and must never be replayed on another one.
        journal.save_snapshot(journal.seq, state)
    check(state)
    return state


def _right_clock(journal: Journal, state: State) -> State:
    """If the clock was ahead when the last event was written, move the recorded times back."""
    now_s = time.time()
    if state.now_s <= now_s + MAX_AHEAD_S:
        return state
    _log.warning("the clock was %.0f s ahead when the controller last ran: correcting times", state.now_s - now_s)
    event = ClockSetBack(now_s)
    journal.append([event])
    return reduce(state, event)[0]


def replayed(journal: Journal, cluster: Cluster, history: History, left_out: list[LeftOut] | None = None) -> State:
    """The state after all events; ``cluster`` is for a journal without any state yet.

    Events that cannot be applied are skipped and added to ``left_out``.
    """
    state, _, tail = journal.load()
    if state is None:
        state = State(cluster)
    for seq, event in tail:
        try:
            state, _ = reduce(state, event)
        except Exception as error:
            _log.error("event %d of %s cannot be applied and is skipped: %r", seq, journal.path, error)
            if left_out is not None:
                left_out.append((seq, event, error))
        history.note(event)
    return state


def _unmet_in_words(journal: Journal, left_out: Sequence[LeftOut]) -> str:
    """Which acknowledged request was skipped; "" if the skipped events are only about workers."""
    for seq, event, error in left_out:
        if isinstance(event, JobSubmitted | CancelRequested | JobChanged):
            about = event.spec.id if isinstance(event, JobSubmitted) else event.job_id
            return (
                f"event {seq} of {journal.path} ({type(event).__name__} of job {about}) was acknowledged but cannot be "
                f"applied ({error!r}): was it written by a newer weft?"
            )
    return ""


def unknown_attempts(state: State, attempts: Iterable[tuple[str, int]]) -> list[tuple[str, int]]:
    """Attempts that were started according to the engine but not according to the journal."""
    jobs = state.jobs
    return [(job_id, attempt) for job_id, attempt in attempts if job_id not in jobs or attempt > jobs[job_id].attempt]


def loss_in_words(journal: Journal, state: State, attempts: Iterable[tuple[str, int]]) -> str:
    """Which events the journal lacks, according to its copy or the engine; "" if none."""
    kept = copy.read(journal.path)
    if kept is not None:
        seq, copied = kept[0], unpacked_state(kept[1])
        purged = {
            job_id for _, event in journal.read(after=seq) if isinstance(event, JobsPurged) for job_id in event.job_ids
        }
        missing = sorted(copied.jobs.keys() - state.jobs.keys() - purged)
        if journal.seq < seq or missing:
            jobs = f", and lacks {_some(missing)}" if missing else ""
            return f"{journal.path} ends with event {journal.seq}, its copy with event {seq}{jobs}: events are missing"
    unknown = [f"attempt {attempt} of job {job_id}" for job_id, attempt in unknown_attempts(state, attempts)]
    if unknown:
        return f"{_some(unknown)} was started, but {journal.path} has no record of it: events are missing"
    return ""


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def on_cluster(state: State, cluster: Cluster) -> State:
    """The same jobs on a cluster that was resized while no controller was running."""
    if state.cluster.devices_by_node == cluster.devices_by_node:
        return state if state.cluster.names == cluster.names else replace(state, cluster=cluster)
    nodes = [cluster.node_of(device) for device in range(cluster.num_devices)]
    for job in state.jobs.active.values():
        for device in (*job.devices, *job.wanted):
            if device >= len(nodes) or nodes[device] != state.cluster.node_of(device):
                raise UsageError(
                    f"job {job.id} has device {device} of {sum(state.cluster.devices_by_node)}, but this controller "
                    f"was started with {cluster.num_devices}: start it with the same number as before; to use fewer, "
                    "first stop the jobs with `weft down --jobs`"
                )
    return replace(state, cluster=cluster)


def unexpected_attempts(state: State, engine: Engine) -> list[tuple[str, int]]:
    """Attempts that the engine still knows but that are not current according to the journal."""
    current = {(job.id, job.attempt) for job in state.jobs.active.values() if job.devices}
    return [attempt for attempt in engine.known() if attempt not in current]


def load_knowledge(home: Home, state: State, knowledge: Knowledge) -> None:
    """Restore measured speeds; without them jobs are measured again."""
    try:
        document: Mapping[str, Any] = json.loads(home.knowledge_file.read_bytes())
        knowledge.restore(document, state.jobs.active)
    except FileNotFoundError:
        return
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        _log.warning("%s cannot be used (%r): jobs are measured again", home.knowledge_file, error)


class Saving:
    """Saves snapshots of the state and measured speeds.  A failure is logged and retried later."""

    def __init__(self, home: Home, journal: Journal, knowledge: Knowledge) -> None:
        self._home, self._journal, self._knowledge = home, journal, knowledge
        self._snapshot_at = _SNAPSHOT_EVERY
        self._changed_s = math.inf

    @property
    def due_s(self) -> float:
        """When to save measured speeds."""
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
            _log.warning("no snapshot was saved, so the next start takes longer: %s", error)

    def knowledge_if_due(self, now_s: float) -> None:
        if now_s >= self.due_s:
            self.knowledge()

    def knowledge(self) -> None:
        self._changed_s = math.inf
        try:
            write_whole(self._home.knowledge_file, json.dumps(self._knowledge.document()).encode())
        except OSError as error:
            _log.warning("measured speeds were not saved: %s", error)
