"""The engine of a Ray cluster, as the controller sees it.  See ``docs/design/ray-engine.md``.

The controller never imports ray: Ray kills a driver whose raylet dies, which must not take the controller with it.  So
the driver is a separate process, the bridge.  This module keeps what must not be lost: orders are files, written before
anything is requested from Ray, and every bridge is sent all of them.
"""

from __future__ import annotations

import importlib.metadata
import logging
import os
import re
import secrets
import select
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from weft.core.engine import EngineEvent, EngineNode, StartOrder
from weft.core.events import Fate
from weft.core.job import Launch
from weft.core.worker_environment import LEASE, LEASE_KEY
from weft.engines.local import records
from weft.engines.local.folders import AttemptFolder, Folders, HomeLock
from weft.engines.local.records import Status
from weft.engines.ray.bridge_client import BridgeClient, BridgeSettings
from weft.engines.ray.cluster_order import ClusterOrder, RayNode, cluster_order, joined
from weft.engines.ray.code_package import check_size
from weft.errors import EngineError, MissingToolError

OLDEST_RAY = (2, 55)
CONNECTS_WITHIN_S = 100.0
MAX_WAIT_S = 10.0
"""Between two tries to reach a cluster that was lost."""

_log = logging.getLogger(__name__)


@dataclass
class ClusterAttempt:
    """One attempt and what is known about its parts."""

    order: ClusterOrder
    files: AttemptFolder
    parts: dict[str, Status] = field(default_factory=dict)
    """By node id."""
    end: Status | None = None
    asked: str = ""
    """stop or kill, once requested."""
    trouble: str = ""
    told_start: bool = False
    told_end: bool = False


class RayEngine:
    """Runs attempts on the nodes of a Ray cluster.  Used by one thread, except ``nodes`` and ``warnings``."""

    def __init__(
        self,
        home: Path,
        *,
        address: str = "auto",
        insecure: bool = False,
        relay: bool = False,
        ship: bool = False,
        warm: bool = True,
        grace_s: float = 120.0,
        hang_s: float = 5.0,
        launcher: Sequence[str] = (),
    ) -> None:
        check_installed()
        home = home.absolute()
        self._jobs = Folders(home)
        self._folders = Folders(home / "ray")
        self._folders.orders.mkdir(parents=True, exist_ok=True, mode=0o700)
        if self._jobs.orders.is_dir() and self._jobs.ordered():
            raise EngineError(
                f"jobs of {home} are still running on this machine: run `weft up` without --engine ray, then let them "
                "finish or stop them with `weft down --jobs`, before using a Ray cluster"
            )
        self._lock = HomeLock(self._folders.engine / "lock")
        files = f"--checkpoints {'relay' if relay else 'shared'} --code {'ship' if ship else 'shared'}"
        self._check_files_mode(files)
        self._settings = BridgeSettings(
            home=str(home),
            namespace=f"weft-{_own_word(self._folders.engine / 'id', 6)}",
            address=address,
            insecure=insecure,
            relay=relay,
            ship=ship,
            warm=warm,
            grace_s=grace_s,
            hang_s=hang_s,
        )
        self._lease_key = _own_word(self._folders.engine / "lease_key", 16)
        self._roles: dict[str, str] = {}
        self._free_bytes: dict[str, int] = {}
        self._least_free_bytes: int | None = None
        self._launcher = tuple(launcher)
        self._epoll = select.epoll()
        self._nodes: tuple[EngineNode, ...] = ()
        self._usable: dict[str, RayNode] = {}
        self._warnings: tuple[str, ...] = ()
        self._cut_off = ""
        """Why the cluster cannot be reached now."""
        self._attempts: dict[tuple[str, int], ClusterAttempt] = {}
        for job_id, attempt in self._folders.ordered():
            self._read_again(job_id, attempt)
        self._bridge = self._launched(0.0)
        try:
            self._wait_for_cluster()
        except BaseException:
            self._bridge.process.kill()
            self.close()
            raise

    def nodes(self) -> tuple[EngineNode, ...]:
        return self._nodes

    def warnings(self) -> tuple[str, ...]:
        return self._warnings

    def start(self, order: StartOrder) -> None:
        key = order.job_id, order.attempt
        if key in self._attempts:
            return
        files = self._jobs.attempt(*key)
        status = records.read_status(files.status)
        if status.fate is None:
            if LEASE in order.environment:
                order = replace(order, environment={**order.environment, LEASE_KEY: self._lease_key})
            found = cluster_order(order, self._usable)
            found = replace(found, shares_with=self._holder_of(found))
        else:
            found = ClusterOrder(*key, (), "", {}, ())
        files.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        # The order is on disk, with the name of its placement group, before Ray hears about it.
        records.write(self._folders.order(*key), found.to_json())
        known = self._attempts[key] = ClusterAttempt(found, files, end=status if status.fate else None)
        if known.end is None:
            self._bridge.send({"kind": "start", "order": found.to_json()})

    def check(self, launch: Launch) -> None:
        if self._settings.ship:
            check_size(Path(launch.cwd))

    def share(self, roles: Mapping[str, str]) -> None:
        self._roles = dict(roles)
        self._bridge.send({"kind": "share", "roles": self._roles})

    def free_bytes(self) -> int | None:
        return self._least_free_bytes

    def stop(self, job_id: str, attempt: int) -> None:
        self._ask("stop", job_id, attempt)

    def kill(self, job_id: str, attempt: int) -> None:
        self._ask("kill", job_id, attempt)

    def poll(self) -> Sequence[EngineEvent]:
        while True:
            message = self._bridge.hear()
            if message is None:
                self._relaunch()
                break
            if not message:
                break
            self._take(message)
        events = [event for known in self._attempts.values() for event in self._told(known)]
        return sorted(events, key=lambda event: event.at_s)

    def fileno(self) -> int:
        return self._epoll.fileno()

    def known(self) -> Sequence[tuple[str, int]]:
        return list(self._attempts)

    def hints(self) -> Mapping[tuple[str, int], str]:
        found = {}
        for key, known in self._attempts.items():
            words = "" if known.end is not None else self._cut_off or known.trouble
            if words:
                found[key] = words
        return found

    def forget(self, job_id: str, attempt: int) -> None:
        known = self._attempts.get((job_id, attempt))
        if known is None or known.end is None:
            return
        records.remove(self._folders.order(job_id, attempt))
        del self._attempts[job_id, attempt]
        self._bridge.send({"kind": "forget", "order": known.order.to_json()})

    def close(self) -> None:
        """Workers keep running; where there are none, nothing of ours is left on the cluster."""
        remove = not self._attempts
        if remove and self._bridge.has_ended():
            self._bridge = self._launched(0.0)
        self._bridge.send({"kind": "close", "remove": remove})
        self._bridge.close()
        self._epoll.close()
        self._lock.release()

    def _check_files_mode(self, mode: str) -> None:
        """Attempts that are already running keep saving where they were told to."""
        file = self._folders.engine / "files_mode"
        before = file.read_text() if file.exists() else mode
        if before != mode and self._folders.ordered():
            self._lock.release()
            raise EngineError(
                f"jobs that were started with {before} are still running: start the controller with the same options; "
                "to change them, first stop the jobs with `weft down --jobs`"
            )
        file.write_text(mode)

    def _read_again(self, job_id: str, attempt: int) -> None:
        document = records.read(self._folders.order(job_id, attempt))
        if document is not None:
            files = self._jobs.attempt(job_id, attempt)
            status = records.read_status(files.status)
            end = status if status.fate else None
            self._attempts[job_id, attempt] = ClusterAttempt(ClusterOrder.from_json(document), files, end=end)

    def _launched(self, wait_s: float) -> BridgeClient:
        settings = replace(self._settings, wait_s=wait_s)
        bridge = BridgeClient.launch(settings, self._folders.engine / "bridge.log", self._launcher)
        self._epoll.register(bridge.channel, select.EPOLLIN)
        bridge.send({"kind": "share", "roles": self._roles})
        for known in self._attempts.values():
            if known.end is None:
                bridge.send({"kind": "start", "order": known.order.to_json()})
                if known.asked:
                    bridge.send({"kind": known.asked, "order": known.order.to_json()})
        return bridge

    def _wait_for_cluster(self) -> None:
        """Wait until all nodes have been checked and one can be used; raise if none can."""
        latest_s = time.monotonic() + CONNECTS_WITHIN_S
        is_complete = False
        while not (self._nodes and is_complete):
            message = self._bridge.hear(max(latest_s - time.monotonic(), 0.0))
            if self._nodes and not message:
                return  # the others join when they are ready
            if message and message["kind"] == "refused":
                raise EngineError(message["reason"])
            if message is None:
                raise EngineError(f"the process that talks to Ray ended: see {self._folders.engine}/bridge.log")
            if not message:
                why = "; ".join(self._warnings) or f"see {self._folders.engine}/bridge.log"
                raise EngineError(f"no node of the Ray cluster could be used within {CONNECTS_WITHIN_S:g} s: {why}")
            self._take(message)
            is_complete = message.get("is_complete", is_complete)
            if not self._nodes and self._warnings and is_complete:
                raise EngineError("; ".join(self._warnings))

    def _relaunch(self) -> None:
        self._epoll.unregister(self._bridge.channel)
        self._bridge.close()
        self._cut_off = self._cut_off or "the Ray cluster cannot be reached; its workers may still be running"
        wait_s = min(max(2.0 * self._settings.wait_s, 1.0), MAX_WAIT_S)
        self._settings = replace(self._settings, wait_s=wait_s)
        self._bridge = self._launched(wait_s)

    def _take(self, message: Mapping[str, Any]) -> None:
        match message:
            case {"kind": "refused", "reason": reason}:
                self._cut_off = f"the Ray cluster cannot be reached: {reason}"
            case {"kind": "nodes", "usable": usable, "alive": alive, "warnings": warnings}:
                self._cut_off = ""
                self._settings = replace(self._settings, wait_s=0.0)
                self._take_nodes([RayNode(**node) for node in usable], set(alive), warnings)
            case {"kind": "memory", "node_id": node_id, "free_bytes": free_bytes}:
                self._free_bytes[node_id] = free_bytes
                used = {node.node_id for node in self._usable.values()}
                self._free_bytes = {node: free for node, free in self._free_bytes.items() if node in used}
                self._least_free_bytes = min(self._free_bytes.values(), default=None)
            case {"kind": "part", "job_id": job_id, "attempt": attempt, "node_id": node_id, "status": status}:
                known = self._attempts.get((job_id, attempt))
                if known is not None:
                    known.parts[node_id] = Status.from_json(status)
            case {"kind": "trouble", "job_id": job_id, "attempt": attempt, "words": words}:
                known = self._attempts.get((job_id, attempt))
                if known is not None:
                    known.trouble = words

    def _take_nodes(self, usable: Sequence[RayNode], alive: set[str], warnings: Sequence[str]) -> None:
        for words in warnings:
            if words not in self._warnings:
                _log.warning("%s", words)
        self._warnings = tuple(warnings)
        self._usable = {node.name: node for node in usable}
        nodes = tuple(EngineNode(node.name, node.num_devices, node.leaves_because, node.kind) for node in usable)
        if nodes != self._nodes:
            self._nodes = nodes
        for known in self._attempts.values():
            for part in known.order.parts if known.end is None else ():
                status = known.parts.get(part.node_id, Status())
                if part.node_id not in alive and status.fate is None:
                    reason = f"node {part.node} was lost"
                    known.parts[part.node_id] = status.ended(time.time(), Fate.LOST, 1, reason)
                    if not known.asked:
                        self._ask("kill", *_key(known.order))

    def _holder_of(self, order: ClusterOrder) -> str:
        """The running attempt that has the same devices: only a pair is given them twice."""
        wanted = order.device_keys
        for known in self._attempts.values():
            if known.end is None and not known.asked and wanted & known.order.device_keys:
                return known.order.name
        return ""

    def _ask(self, what: str, job_id: str, attempt: int) -> None:
        known = self._attempts.get((job_id, attempt))
        if known is None or known.end is not None:
            return
        if known.asked != "kill":
            known.asked = what
        self._bridge.send({"kind": what, "order": known.order.to_json()})

    def _told(self, known: ClusterAttempt) -> list[EngineEvent]:
        """Events that have not been reported yet."""
        if known.told_end:
            return []
        status = known.end
        if status is None:
            status = joined([(part.node, known.parts.get(part.node_id, Status())) for part in known.order.parts])
            if status.fate is not None:
                records.write(known.files.status, status.to_json())
                known.end = status
        events = status.news(*_key(known.order), is_start_told=known.told_start)
        known.told_start = known.told_start or status.started_s is not None
        known.told_end = status.fate is not None
        return events


def check_installed() -> None:
    """Raise unless this engine can use the installed Ray; does not import it."""
    try:
        version = importlib.metadata.version("ray")
    except importlib.metadata.PackageNotFoundError:
        raise MissingToolError(
            "Ray is not installed here: run `pip install 'weft[ray]'` in this environment, with the same version of "
            "Ray as the cluster's"
        ) from None
    numbers = tuple(int(number) for number in re.findall(r"\d+", version)[:2])
    if numbers < OLDEST_RAY:
        oldest = ".".join(map(str, OLDEST_RAY))
        raise MissingToolError(f"Ray {version} is installed, expected {oldest} or later: upgrade Ray on every node")


def _key(order: ClusterOrder) -> tuple[str, int]:
    return order.job_id, order.attempt


def _own_word(file: Path, num_bytes: int) -> str:
    """A random word of this home, such as its id among all homes that use a Ray cluster; created on the first call."""
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        return file.read_text().strip()
    with os.fdopen(descriptor, "w") as text:
        made = secrets.token_hex(num_bytes)
        text.write(made)
    return made
