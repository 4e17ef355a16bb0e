"""What a controller finds when it comes back: the journal, and workers that went on without it."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from weft.control.invariants import check
from weft.control.reducer import reduce
from weft.control.state import State
from weft.core.cluster import Cluster
from weft.core.engine import Engine
from weft.daemon.history import History
from weft.daemon.home import Home
from weft.daemon.knowledge import Knowledge
from weft.errors import UsageError
from weft.store import Journal

_log = logging.getLogger(__name__)


def load_state(journal: Journal, cluster: Cluster, history: History) -> State:
    """The state as of the last event that was written down, on the cluster as it is now."""
    state, _, tail = journal.load()
    first = state is None
    if state is None:
        state = State(cluster)
    for _, event in tail:
        state, _ = reduce(state, event)
        history.note(event)
    if first or state.cluster.devices_by_node != cluster.devices_by_node:
        state = on_cluster(state, cluster)
        # Later events are about this cluster: they must never be replayed on another one.
        journal.save_snapshot(journal.seq, state)
    check(state)
    return state


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
