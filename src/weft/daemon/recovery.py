"""What a controller finds when it comes back: the journal, and workers that went on without it."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from weft.control.invariants import check
from weft.control.reducer import reduce
from weft.control.state import State
from weft.core.cluster import Cluster
from weft.core.engine import Engine
from weft.core.events import CancelRequested, ClockSetBack, Event, JobsPurged, JobSubmitted
from weft.daemon.faults import AN_EVENT, Faults
from weft.daemon.history import History
from weft.daemon.home import Home
from weft.daemon.knowledge import Knowledge
from weft.errors import StoreError, UsageError
from weft.store import Journal, copy
from weft.store.journal import REMEDY, unpacked_state

MAX_AHEAD_S = 60.0
"""A clock that was this far ahead, or less, is simply waited for: time stands still until then."""

LeftOut = tuple[int, Event, Exception]

_log = logging.getLogger(__name__)


def load_state(
    journal: Journal,
    engine: Engine,
    history: History,
    *,
    faults: Faults | None = None,
    accept_loss: bool = False,
    wall_s: float | None = None,
) -> State:
    """The state as of the last event that was written down, on the cluster as it is now."""
    cluster = Cluster(tuple(engine.devices_by_node))
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
    found = _right_clock(journal, found, wall_s)
    state = on_cluster(found, cluster)
    if journal.seq == 0 or found is not state:
        # Later events are about this cluster: they must never be replayed on another one.
        journal.save_snapshot(journal.seq, state)
    check(state)
    return state


def _right_clock(journal: Journal, state: State, wall_s: float | None) -> State:
    """If the clock was ahead when the last event was written, what was written then is moved back with it."""
    now_s = time.time() if wall_s is None else wall_s
    if state.now_s <= now_s + MAX_AHEAD_S:
        return state
    _log.warning("the clock was %.0f s ahead when the controller last ran: times are corrected", state.now_s - now_s)
    event = ClockSetBack(now_s)
    journal.append([event])
    return reduce(state, event)[0]


def replayed(journal: Journal, cluster: Cluster, history: History, left_out: list[LeftOut] | None = None) -> State:
    """What the journal says; ``cluster`` is for one without any state yet.

    Events that cannot be applied are left out, and added to the list.
    """
    state, _, tail = journal.load()
    if state is None:
        state = State(cluster)
    for seq, event in tail:
        try:
            state, _ = reduce(state, event)
        except Exception as error:
            _log.error("event %d of %s cannot be applied and is left out: %r", seq, journal.path, error)
            if left_out is not None:
                left_out.append((seq, event, error))
        history.note(event)
    return state


def _unmet_in_words(journal: Journal, left_out: Sequence[LeftOut]) -> str:
    """What users were promised and these events would have kept; nothing if they only told of workers."""
    for seq, event, error in left_out:
        if isinstance(event, JobSubmitted | CancelRequested):
            about = event.spec.id if isinstance(event, JobSubmitted) else event.job_id
            return (
                f"event {seq} of {journal.path} ({type(event).__name__} of job {about}) was acknowledged and cannot be "
                f"applied ({error!r}): is it of a newer weft?"
            )
    return ""


def unknown_attempts(state: State, attempts: Iterable[tuple[str, int]]) -> list[tuple[str, int]]:
    """Attempts that were started and of which the journal does not know that they were."""
    jobs = state.jobs
    return [(job_id, attempt) for job_id, attempt in attempts if job_id not in jobs or attempt > jobs[job_id].attempt]


def loss_in_words(journal: Journal, state: State, attempts: Iterable[tuple[str, int]]) -> str:
    """What the journal has forgotten though its copy or the engine still knows; nothing if it is whole."""
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
        return f"{_some(unknown)} was started, and {journal.path} knows nothing of it: events are missing"
    return ""


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def on_cluster(state: State, cluster: Cluster) -> State:
    """The same jobs on a cluster that was made larger or smaller while the controller was away."""
    if state.cluster.devices_by_node == cluster.devices_by_node:
        return state
    there = [cluster.node_of(device) for device in range(cluster.num_devices)]
    for job in state.jobs.active.values():
        for device in (*job.devices, *job.wanted):
            if device >= len(there) or there[device] != state.cluster.node_of(device):
                raise UsageError(
                    f"job {job.id} has device {device} of {sum(state.cluster.devices_by_node)}, and this controller "
                    f"was started with {cluster.num_devices}: start it with as many devices as before, or stop the "
                    "jobs first with `weft down --jobs`"
                )
    return replace(state, cluster=cluster)


def strangers(state: State, engine: Engine) -> list[tuple[str, int]]:
    """Attempts the engine still knows and the journal does not count on any more."""
    present = {(job.id, job.attempt) for job in state.jobs.active.values() if job.devices}
    return [attempt for attempt in engine.known() if attempt not in present]


def load_knowledge(home: Home, state: State, knowledge: Knowledge) -> None:
    """Speeds measured before; without them jobs are measured again."""
    try:
        document: Mapping[str, Any] = json.loads(home.knowledge_file.read_bytes())
        knowledge.restore(document, state.jobs.active)
    except FileNotFoundError:
        return
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        _log.warning("%s cannot be used (%r): jobs are measured again", home.knowledge_file, error)
