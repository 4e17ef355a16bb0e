"""The process that is a Ray driver: carries out the controller's orders, and reports the results.

It may be killed at any time, and Ray kills it when this machine's raylet is lost: the controller starts another one and
repeats its orders.  Everything here is idempotent, by actor name and by (job, attempt).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import socket
import sys
import threading
import time
from collections.abc import Coroutine, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import ray

from weft.engines import pool_messages
from weft.engines.local.folders import Folders
from weft.engines.ray import cluster_access, node_check, output_mirror
from weft.engines.ray.attempt_owner import AttemptOwner
from weft.engines.ray.bridge_client import BridgeSettings
from weft.engines.ray.cluster_access import ClusterRefused, actor_named, agent_name, alive_nodes, connect, last_line
from weft.engines.ray.cluster_order import ClusterOrder, RayNode
from weft.engines.ray.deliveries import Deliveries
from weft.engines.ray.node_agent import NodeAgent
from weft.engines.ray.node_names import NodeNames
from weft.engines.ray.report_relay import ReportRelay

LOOK_EVERY_S = 1.0
CHECKED_WITHIN_S = 60.0
TRY_AGAIN_S = 5.0
_NOTEWORTHY = 0.05
"""The controller is told when free memory has changed by more than this fraction."""

_log = logging.getLogger(__name__)


@dataclass
class NodeLink:
    """One node, and the state of our connection to it."""

    node: RayNode
    agent: Any = None
    problem: str = ""
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    is_gone: bool = False
    task: asyncio.Task[None] | None = None
    free_bytes: int = 0


class Bridge:
    """One connection between a controller and a cluster."""

    def __init__(self, channel: socket.socket, settings: BridgeSettings) -> None:
        self._channel = channel
        self._settings = settings
        self._home = Path(settings.home)
        self._links: dict[str, NodeLink] = {}
        self._scanned = asyncio.Event()
        self._orders: dict[tuple[str, int], ClusterOrder] = {}
        self._roles: dict[str, str] = {}
        self._deliveries = Deliveries(self._home / "jobs", relay=settings.relay, ship=settings.ship)
        self._checkpoints = self._deliveries.checkpoints
        self._tasks: set[asyncio.Task[None]] = set()
        self._last_told: dict[str, Any] = {}
        self._relay = ReportRelay(self._home)
        self._ours = {name: node_check.installed(name) for name in ("weft", "torch")}
        self._ending = asyncio.Event()
        self._remove = False

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        reader = threading.Thread(target=self._read, args=(loop,), name="weft-orders", daemon=True)
        reader.start()
        watching = asyncio.create_task(self._watch_nodes())
        ending = asyncio.create_task(self._ending.wait())
        await asyncio.wait([watching, ending], return_when=asyncio.FIRST_COMPLETED)
        if watching.done():
            watching.result()
        watching.cancel()
        if self._remove:
            for task in self._tasks:
                task.cancel()  # or it would create an agent, or an owner, after we have looked
            await cluster_access.remove_all()

    # Orders ------------------------------------------------------------------------------------------------------

    def _read(self, loop: asyncio.AbstractEventLoop) -> None:
        while True:
            try:
                received = pool_messages.receive(self._channel)
            except (OSError, ValueError):
                received = None
            message = {"kind": "close", "remove": False} if received is None else received[0]
            loop.call_soon_threadsafe(self._take, message)
            if message["kind"] == "close":
                return

    def _take(self, message: Mapping[str, Any]) -> None:
        if message["kind"] == "close":
            self._remove = message["remove"]
            self._ending.set()
            return
        if message["kind"] == "share":
            self._roles = dict(message["roles"])  # the agents get them when they are next asked for news
            return
        order = ClusterOrder.from_json(message["order"])
        if message["kind"] == "start":
            self._orders[order.job_id, order.attempt] = order
            self._spawn(self._start(order))
        elif message["kind"] == "forget":
            self._orders.pop((order.job_id, order.attempt), None)
            self._spawn(self._forget(order))
        else:
            self._spawn(self._each_part(order, message["kind"]))

    async def _start(self, order: ClusterOrder) -> None:
        lead = await self._agent(order.parts[0].node_id)
        if lead is None or await lead.is_over.remote(order.job_id, order.attempt):
            return
        if await asyncio.to_thread(actor_named, order.name) is None:
            await asyncio.gather(*(self._deliver(order, part.node_id) for part in order.parts))
        owner = ray.remote(AttemptOwner).options(
            name=order.name,
            lifetime="detached",
            get_if_exists=True,
            num_cpus=0,
            max_restarts=0,
            label_selector={"ray.io/node-id": order.parts[0].node_id},
        )
        handle = owner.remote()
        try:
            await handle.run.remote(order.to_json())
        except ray.exceptions.RayActorError:
            pass  # it ends with the attempt, however that ends
        except Exception as error:
            _log.exception("attempt %s cannot be started", order.name)
            words = f"its workers cannot be started: {last_line(error)}"
            self._send({"kind": "trouble", "job_id": order.job_id, "attempt": order.attempt, "words": words})
            ray.kill(handle)
        # If its owner was killed, nothing holds the attempt's devices or stops its parts together.
        await self._each_part(order, "kill")

    async def _forget(self, order: ClusterOrder) -> None:
        await self._each_part(order, "forget")
        await cluster_access.remove(order.name)  # an agent that restarted meanwhile has no outcome to tell its owner

    async def _deliver(self, order: ClusterOrder, node_id: str) -> None:
        """Give a node what the attempt needs before it starts."""
        trouble = {"kind": "trouble", "job_id": order.job_id, "attempt": order.attempt}
        is_late = False
        while (order.job_id, order.attempt) in self._orders and (agent := await self._agent(node_id)):
            try:
                await self._deliveries.bring(order, agent)
                break
            except Exception as error:
                is_late = True
                _log.warning("%s cannot be brought to node %s: %s", order.name, node_id, error)
                words = f"waits for its files to be copied to its nodes ({last_line(error)})"
                self._send({**trouble, "words": words})
                await asyncio.sleep(LOOK_EVERY_S)
        if is_late:
            self._send({**trouble, "words": ""})

    async def _collect(self, job_id: str) -> None:
        """Copy the newest checkpoint of a job here."""
        parts = [part for (job, _), order in self._orders.items() if job == job_id for part in order.parts]
        links = [self._links.get(node_id) for node_id in dict.fromkeys(part.node_id for part in parts)]
        agents = [link.agent for link in links if link is not None and link.ready.is_set()]
        if self._checkpoints is not None:
            await self._checkpoints.collect(job_id, agents)

    async def _each_part(self, order: ClusterOrder, what: str) -> None:
        async def ask(node_id: str) -> None:
            agent = await self._agent(node_id)
            while agent is not None:
                try:
                    if what == "forget":
                        await agent.forget.remote(order.job_id, order.attempt)
                    else:
                        await getattr(agent, what).remote(order.to_json())
                    return
                except Exception as error:
                    _log.warning("%s of %s on node %s: %s", what, order.name, node_id, last_line(error))
                    await asyncio.sleep(LOOK_EVERY_S)
                    agent = await self._agent(node_id)

        await asyncio.gather(*(ask(part.node_id) for part in order.parts))

    async def _agent(self, node_id: str) -> Any:
        """The agent of a node; None if the node is gone."""
        await self._scanned.wait()
        link = self._links.get(node_id)
        if link is None:
            return None
        await link.ready.wait()
        return None if link.is_gone else link.agent

    # Nodes -------------------------------------------------------------------------------------------------------

    async def _watch_nodes(self) -> None:
        names = NodeNames()
        while True:
            seen = {node.node_id: node for node in await asyncio.to_thread(alive_nodes, names)}
            for node_id, node in seen.items():
                link = self._links.get(node_id)
                if link is None:
                    link = self._links[node_id] = NodeLink(node)
                    link.task = self._spawn(self._serve(link))
                link.node = node
            for node_id in [node_id for node_id in self._links if node_id not in seen]:
                self._drop(self._links.pop(node_id))
            self._scanned.set()
            self._tell_nodes()
            await asyncio.sleep(LOOK_EVERY_S)

    def _drop(self, link: NodeLink) -> None:
        link.is_gone = True
        link.ready.set()
        if link.task is not None:
            link.task.cancel()
        if link.agent is not None:
            with contextlib.suppress(Exception):  # otherwise Ray would wait forever for its node to come back
                ray.kill(link.agent, no_restart=True)

    def _tell_nodes(self) -> None:
        links = list(self._links.values())
        usable = [asdict(link.node) for link in links if link.ready.is_set() and link.node.num_devices]
        checked = all(link.ready.is_set() or link.problem for link in links)
        told = {
            "kind": "nodes",
            "usable": sorted(usable, key=lambda node: str(node["name"])),
            "alive": sorted(self._links),
            "warnings": list(dict.fromkeys(link.problem for link in links if link.problem)),  # each once
            "is_complete": checked,
        }
        if told != self._last_told:
            self._last_told = told
            self._send(told)

    async def _serve(self, link: NodeLink) -> None:
        """Get a node ready, then pass on news from its agent until it is gone."""
        while not link.is_gone:
            try:
                link.agent = await asyncio.to_thread(actor_named, agent_name(link.node.node_id))
                link.problem = await self._checked(link.node, link.agent)
                if not link.problem:
                    link.agent = link.agent or self._agent_on(link.node)
                    await link.agent.open.remote()
                    link.ready.set()
            except Exception as error:
                _log.exception("node %s", link.node.name)
                link.problem = f"node {link.node.name} cannot be used: {last_line(error)}"
            self._tell_nodes()
            if link.ready.is_set():
                await self._listen(link)
            await asyncio.sleep(TRY_AGAIN_S)

    async def _checked(self, node: RayNode, agent: Any) -> str:
        """Why this node cannot be used; empty if it can.  An agent that already runs there checks for itself."""
        folder, nonce = self._home / "ray" / "nodes", secrets.token_hex(8)
        folder.mkdir(exist_ok=True, mode=0o700)
        look = (
            agent.looked_at
            if agent is not None
            else ray.remote(node_check.looked_at).options(
                num_cpus=0, max_retries=0, label_selector={"ray.io/node-id": node.node_id}
            )
        )
        found = await asyncio.wait_for(look.remote(str(folder), node.node_id, nonce), CHECKED_WITHIN_S)
        left = folder / f"node-{node.node_id}"
        try:
            sees_folder = left.read_text() == nonce
            left.unlink()
        except OSError:
            sees_folder = False
        insecure = self._settings.insecure
        sees_folder = sees_folder or self._settings.relay
        return node_check.problem(
            node.name, found, self._ours, str(self._home), sees_folder=sees_folder, insecure=insecure
        )

    def _agent_on(self, node: RayNode) -> Any:
        settings = {name: getattr(self._settings, name) for name in ("warm", "grace_s", "hang_s", "ship")}
        settings["relay"] = str(self._home / "relay" / quote(node.name, safe="")) if self._settings.relay else ""
        agent = ray.remote(NodeAgent).options(
            name=agent_name(node.node_id),
            lifetime="detached",
            get_if_exists=True,
            num_cpus=0,
            max_restarts=-1,
            max_concurrency=1000,
            label_selector={"ray.io/node-id": node.node_id},
        )
        return agent.remote(self._settings.namespace, node.node_id, node.num_devices, settings)

    async def _listen(self, link: NodeLink) -> None:
        epoch, version = "", -1
        while not link.is_gone:
            copied = [
                (job_id, attempt, output_mirror.sizes(self._attempt_folder(job_id, attempt)))
                for (job_id, attempt), order in self._orders.items()
                if any(part.node_id == link.node.node_id for part in order.parts)
            ]
            try:
                news = await link.agent.news.remote(epoch, version, copied, self._roles)
                self._mirror(news["output"])
                if news["statuses"]:  # output from before the end is copied before the end is reported
                    while pieces := (await self._rest(link, news["statuses"])):
                        self._mirror(pieces)
            except Exception as error:
                _log.warning("the agent of node %s does not respond: %s", link.node.name, last_line(error))
                await asyncio.sleep(LOOK_EVERY_S)
                continue
            epoch, version = news["epoch"], news["version"]
            self._note_memory(link, news["free_bytes"])
            self._relay.pass_on(news["reports"])
            if self._checkpoints is not None:
                for job_id in self._checkpoints.not_collected(news["checkpoints"]):
                    self._spawn(self._collect(job_id))
            for job_id, attempt, status in news["statuses"]:
                told = {"job_id": job_id, "attempt": attempt, "node_id": link.node.node_id, "status": status}
                if self._checkpoints is not None and status["fate"] is not None:
                    self._spawn(self._tell_end(job_id, {"kind": "part", **told}))
                else:
                    self._send({"kind": "part", **told})
            for job_id, attempt, words in news["troubles"]:
                self._send({"kind": "trouble", "job_id": job_id, "attempt": attempt, "words": words})

    def _note_memory(self, link: NodeLink, free_bytes: int) -> None:
        if abs(free_bytes - link.free_bytes) > _NOTEWORTHY * link.free_bytes:
            link.free_bytes = free_bytes
            self._send({"kind": "memory", "node_id": link.node.node_id, "free_bytes": free_bytes})

    async def _tell_end(self, job_id: str, told: dict[str, Any]) -> None:
        """Report the end once the last checkpoint is here: the next attempt may run on other nodes."""
        await self._collect(job_id)
        self._send(told)

    async def _rest(self, link: NodeLink, statuses: list[tuple[str, int, Any]]) -> list[Any]:
        ended = [(job_id, attempt) for job_id, attempt, status in statuses if status["fate"] is not None]
        copied = [(*key, output_mirror.sizes(self._attempt_folder(*key))) for key in ended if key in self._orders]
        return list(await link.agent.output.remote(copied)) if copied else []

    def _mirror(self, pieces: list[Any]) -> None:
        for job_id, attempt, name, offset, data in pieces:
            with contextlib.suppress(OSError):  # the disk is full: try again later
                output_mirror.add(self._attempt_folder(job_id, attempt), name, offset, data)

    def _attempt_folder(self, job_id: str, attempt: int) -> Path:
        return Folders(self._home).attempt(job_id, attempt).path

    def _send(self, message: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):  # the controller is gone; the reader notices
            pool_messages.send(self._channel, message)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._over)
        return task

    def _over(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            _log.error("a task of the bridge failed", exc_info=task.exception())


def main() -> None:
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    channel = socket.socket(fileno=int(sys.argv[1]))
    received = pool_messages.receive(channel)
    if received is None:
        return
    fields = {name: value for name, value in received[0].items() if name != "kind"}
    settings = BridgeSettings(**fields)
    time.sleep(settings.wait_s)
    # Sent to nodes as code, not by name: weft may be missing there.
    ray.cloudpickle.register_pickle_by_value(node_check)
    try:
        connect(settings.address, settings.namespace, insecure=settings.insecure)
    except ClusterRefused as error:
        pool_messages.send(channel, {"kind": "refused", "reason": str(error)})
        return
    asyncio.run(Bridge(channel, settings).run())
    os._exit(0)  # Ray's own shutdown takes seconds, and everything that outlives us is detached


if __name__ == "__main__":
    main()
