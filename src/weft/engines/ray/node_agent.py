"""One node's agent: a detached Ray actor that starts the workers of its node with the local engine.

It can be killed at any time: Ray restarts it, and what the local engine must not forget is in files.  It keeps the
outcome of every attempt until it is told to forget it.  Its folder belongs to one start of Ray on the node: after Ray
restarts, nobody looks for its attempts, and the warden has killed them.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import secrets
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import ray

from weft.core.engine import StartOrder
from weft.core.events import WorkersExited, WorkersStarted
from weft.core.job import Launch
from weft.core.worker_environment import CHANNEL, CHECKPOINT_DIR, CHECKPOINT_RELAY, LEASE
from weft.engines.local.folders import Folders, HomeLock
from weft.engines.local.local_engine import LocalEngine
from weft.engines.local.records import Status
from weft.engines.ray import job_folders, node_check, output_mirror, warden
from weft.engines.ray.cluster_order import ClusterOrder, NodePart
from weft.engines.ray.code_package import NodeCode, moved
from weft.engines.ray.node_checkpoints import NodeCheckpoints
from weft.engines.ray.node_leases import NodeLeases
from weft.engines.ray.report_queue import ReportQueue
from weft.engines.worker_launch import GangPart
from weft.errors import EngineError

_LOOK_EVERY_S = 1.0
_WARDEN_EVERY = 10
_MAX_REPORT_BYTES = 1 << 16

Key = tuple[str, int]


class NodeAgent:
    """The methods are called through Ray, all in one event loop."""

    def __init__(self, namespace: str, node_id: str, num_devices: int, settings: Mapping[str, Any]) -> None:
        self._node_id = node_id
        self._num_devices = num_devices
        self._settings = settings
        self._home = Path(tempfile.gettempdir(), f"weft-{os.getuid()}", namespace, node_id[:16])
        self._folders = Folders(self._home)
        self._epoch = secrets.token_hex(4)
        self._version = 0
        self._statuses: dict[Key, tuple[int, Status]] = {}
        self._troubles: dict[Key, str] = {}
        self._forgotten: dict[str, int] = {}
        """The newest forgotten attempt of each job: a late message must not bring it back."""
        self._reports = ReportQueue()
        self._changed = asyncio.Condition()
        self._engine: LocalEngine | None = None
        self._checkpoints = NodeCheckpoints(Path(settings["relay"])) if settings["relay"] else None
        """Set if checkpoints stay on the nodes."""
        self._code = NodeCode(self._home / "code") if settings["ship"] else None
        """Set if jobs' folders are sent here."""
        self._leases: NodeLeases | None = None
        self._roles: Mapping[str, str] = {}
        """How jobs in pairs share, according to the controller's last message."""
        self._channel: socket.socket | None = None
        self._opening = asyncio.Lock()
        self._watching: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Get ready; does nothing the second time."""
        async with self._opening:
            if self._engine is not None:
                return
            for folder in (self._home.parent.parent, self._home.parent, self._home, self._home / "run"):
                folder.mkdir(mode=0o700, exist_ok=True)
                status = folder.lstat()
                if status.st_uid != os.getuid() or status.st_mode & 0o077:
                    raise PermissionError(f"{folder} belongs to another user, or other users can enter it")
            if self._checkpoints is not None:
                self._checkpoints.prepare()
            settings = self._settings
            raylet_pid = os.getppid()
            (self._folders.engine / warden.CLOSED).unlink(missing_ok=True)
            environment = _environment_of(raylet_pid)
            self._leases = NodeLeases(self._home / "run", self._folders.engine, environment)
            self._engine = LocalEngine(
                self._home,
                num_devices=self._num_devices,
                warm=settings["warm"],
                grace_s=settings["grace_s"],
                hang_s=settings["hang_s"],
                environment=environment,
            )
            await self._see_to_the_warden()
            self._channel = _bound(self._home / "run" / "channel.sock")
            loop = asyncio.get_running_loop()
            loop.add_reader(self._channel.fileno(), self._hear_workers)
            loop.add_reader(self._engine.fileno(), lambda: loop.create_task(self._look()))
            self._watching = loop.create_task(self._look_now_and_then())

    async def looked_at(self, folder: str, node_id: str, nonce: str) -> dict[str, Any]:
        """What is installed here, for a controller that has come back."""
        return node_check.looked_at(folder, node_id, nonce)

    async def start(self, document: Mapping[str, Any], meeting: Mapping[str, Any] | None = None) -> None:
        """Start this node's part; the others are told where to meet by the part that leads."""
        order = ClusterOrder.from_json(document)
        number, own = self._own(order)
        engine = await self._opened()
        assert self._leases is not None
        meeting = dict(meeting or {})
        lead = meeting.pop("lead", "")
        if len(order.parts) > 1 and number == 0:
            lead = await self._lead(order, own)
        if self._is_forgotten(order):  # checked last: it may have been forgotten while we waited
            return
        part = None
        if len(order.parts) > 1:
            part = GangPart(
                first_rank=own.first_rank,
                world_size=order.num_workers,
                node_rank=number,
                num_nodes=len(order.parts),
                address=own.address,
                interface=interface_of(own.address),
                **meeting,
            )
        argv, cwd = order.argv, order.cwd
        if self._code is not None:
            cwd = str(self._code.folder(order.job_id))
            argv = moved(argv, order.cwd, cwd)
        launch = Launch(argv, cwd, self._leases.environment(order.environment, own, lead))
        here = {CHANNEL: str(self._home / "run" / "channel.sock")}
        if self._checkpoints is not None:
            here |= {CHECKPOINT_DIR: str(self._checkpoints.folder(order.job_id)), CHECKPOINT_RELAY: "1"}
        engine.start(StartOrder(order.job_id, order.attempt, own.devices, launch, here), part)
        await self._look()

    async def stop(self, document: Mapping[str, Any]) -> None:
        await self._end(ClusterOrder.from_json(document), LocalEngine.stop)

    async def kill(self, document: Mapping[str, Any]) -> None:
        await self._end(ClusterOrder.from_json(document), LocalEngine.kill)

    async def _end(self, order: ClusterOrder, end: Callable[[LocalEngine, str, int], None]) -> None:
        engine = await self._opened()
        if not self._is_forgotten(order):
            engine.call_off(order.job_id, order.attempt)
            end(engine, order.job_id, order.attempt)
            await self._look()

    async def forget(self, job_id: str, attempt: int) -> None:
        (await self._opened()).forget(job_id, attempt)
        self._forgotten[job_id] = max(attempt, self._forgotten.get(job_id, 0))
        self._statuses.pop((job_id, attempt), None)
        self._troubles.pop((job_id, attempt), None)
        self._reports.forget(job_id, attempt)

    async def note_trouble(self, job_id: str, attempt: int, words: str) -> None:
        """What keeps an attempt waiting, according to its owner."""
        self._troubles[job_id, attempt] = words

    async def is_over(self, job_id: str, attempt: int) -> bool:
        await self._look()
        known = self._statuses.get((job_id, attempt))
        return known is not None and known[1].fate is not None

    async def meeting(self, document: Mapping[str, Any]) -> dict[str, Any] | None:
        """Where the other parts meet this one, once the port is bound; None if this part ends before that.

        Also where their lease servers find the turn order, in case the job shares its devices.
        """
        order, engine = ClusterOrder.from_json(document), await self._opened()
        job_id, attempt = key = order.job_id, order.attempt
        lead = await self._lead(order, order.parts[0])
        while True:
            status = engine.status(job_id, attempt)
            if status is not None and status.port:
                return {"master_port": status.port, "store_is_served": status.store_is_served, "lead": lead}
            if key in self._statuses and self._statuses[key][1].fate is not None:
                return None
            await self._wait(0.1)

    async def ended(self, job_id: str, attempt: int) -> str:
        """Returns when this part is over, with its fate; nothing if it was forgotten before anybody asked."""
        key = job_id, attempt
        while attempt > self._forgotten.get(job_id, 0):
            known = self._statuses.get(key)
            if known is not None and known[1].fate is not None:
                return known[1].fate.value
            await self._wait(_LOOK_EVERY_S)
        return ""

    async def news(
        self, epoch: str, version: int, copied: list[tuple[str, int, dict[str, int]]], roles: Mapping[str, str]
    ) -> dict[str, Any]:
        """What has changed since ``version``: immediately if a status has, or the controller waits for a report.

        Otherwise after a second.

        ``copied``: how much of each attempt's output the caller already has.  ``roles``: how jobs in pairs share.
        """
        await self._opened()
        self._roles = roles
        if epoch != self._epoch:
            version = -1
        if version >= self._version and not self._reports.is_awaited:
            await self._wait(_LOOK_EVERY_S)
        statuses = [(*key, status.to_json()) for key, (at, status) in self._statuses.items() if at > version]
        output = await self.output(copied)
        troubles = [(*key, words) for key, words in self._troubles.items()]
        if self._engine is not None:
            troubles += [(*key, words) for key, words in self._engine.hints().items()]
        return {
            "epoch": self._epoch,
            "version": self._version,
            "statuses": statuses,
            "reports": self._reports.take(),
            "output": output,
            "troubles": troubles,
            "checkpoints": self._newest_checkpoints(),
            "free_bytes": psutil.virtual_memory().available,
        }

    async def output(self, copied: list[tuple[str, int, dict[str, int]]]) -> list[tuple[str, int, str, int, bytes]]:
        """Output that has not been copied yet: job, attempt, file, offset, data."""
        found = []
        for job_id, attempt, sizes in copied:
            folder = self._folders.attempt(job_id, attempt).path
            found += [(job_id, attempt, *piece) for piece in output_mirror.news(folder, sizes)]
        return found

    async def is_known(self, job_id: str, attempt: int) -> bool:
        """Whether the attempt was ever ordered here."""
        return (await self._opened()).status(job_id, attempt) is not None

    async def has_code(self, job_id: str) -> bool:
        return self._code is not None and self._code.has(job_id)

    async def put_code(self, job_id: str, offset: int, data: bytes, is_last: bool) -> None:
        assert self._code is not None
        await asyncio.to_thread(self._code.put, job_id, offset, data, is_last=is_last)

    async def checkpoints(self, job_id: str) -> dict[str, dict[str, int]]:
        """See :class:`NodeCheckpoints`, as for the next three."""
        return {} if self._checkpoints is None else await asyncio.to_thread(self._checkpoints.steps, job_id)

    async def piece(self, job_id: str, step: str, file: str, offset: int) -> bytes:
        assert self._checkpoints is not None
        return await asyncio.to_thread(self._checkpoints.piece, job_id, step, file, offset)

    async def put_piece(self, job_id: str, step: str, file: str, offset: int, data: bytes) -> None:
        assert self._checkpoints is not None
        await asyncio.to_thread(self._checkpoints.put, job_id, step, file, offset, data)

    async def settle_checkpoint(self, job_id: str, step: str, manifest: bytes) -> list[str]:
        assert self._checkpoints is not None
        return await asyncio.to_thread(self._checkpoints.settle, job_id, step, manifest)

    async def _sweep(self) -> None:
        jobs = [] if self._engine is None else [job_id for job_id, _ in self._engine.known()]
        for kept in (self._checkpoints, self._code):
            if kept is not None:
                await asyncio.to_thread(job_folders.sweep, kept.root, jobs)

    def _newest_checkpoints(self) -> dict[str, str]:
        if self._checkpoints is None or self._engine is None:
            return {}
        jobs = {job_id for job_id, _ in self._engine.known()}
        return {job_id: step for job_id in jobs if (step := self._checkpoints.newest(job_id))}

    async def close(self) -> None:
        """Nothing will be started here anymore, and the controller no longer needs any outcome."""
        if self._engine is None or self._leases is None:
            return
        for job_id, attempt in self._engine.known():
            self._engine.forget(job_id, attempt)
        if not self._engine.known():
            (self._folders.engine / warden.CLOSED).touch()
            self._stop_listening()
            self._engine.close()
            await self._leases.close()

    async def _lead(self, order: ClusterOrder, part: NodePart) -> str:
        assert self._leases is not None
        return await self._leases.lead(part) if LEASE in order.environment else ""

    def _stop_listening(self) -> None:
        loop = asyncio.get_running_loop()
        if self._watching is not None:
            self._watching.cancel()
        if self._engine is not None:
            loop.remove_reader(self._engine.fileno())
        if self._channel is not None:
            loop.remove_reader(self._channel.fileno())
            self._channel.close()

    def _is_forgotten(self, order: ClusterOrder) -> bool:
        return order.attempt <= self._forgotten.get(order.job_id, 0)

    def _own(self, order: ClusterOrder) -> tuple[int, NodePart]:
        return next((number, part) for number, part in enumerate(order.parts) if part.node_id == self._node_id)

    async def _opened(self) -> LocalEngine:
        await self.open()
        assert self._engine is not None
        return self._engine

    async def _look_now_and_then(self) -> None:
        for turn in itertools.count():
            await self._look()
            if self._roles and self._leases is not None and self._engine is not None and self._engine.known():
                await self._leases.keep(self._roles)
            if turn % _WARDEN_EVERY == 0:
                await self._see_to_the_warden()
                await self._sweep()
            await asyncio.sleep(_LOOK_EVERY_S)

    async def _see_to_the_warden(self) -> None:
        """Start a warden if there is none: nothing may run here without one."""
        try:
            HomeLock(self._folders.engine / "warden.lock").release()
        except EngineError:
            return  # there is one
        head = ray.get_runtime_context().gcs_address
        command = [sys.executable, "-P", "-m", "weft.engines.ray.warden", str(self._folders.engine)]
        started = await asyncio.create_subprocess_exec(*command, str(os.getppid()), head, stdin=subprocess.DEVNULL)
        await started.wait()

    async def _look(self) -> None:
        assert self._engine is not None
        events = self._engine.poll()
        for event in events:
            key = event.job_id, event.attempt
            _, status = self._statuses.get(key, (0, Status()))
            if isinstance(event, WorkersStarted):
                status = replace(status, started_s=event.at_s)
            elif isinstance(event, WorkersExited):
                status = status.ended(event.at_s, event.fate, event.exit_code, event.reason)
                self._troubles.pop(key, None)
            self._version += 1
            self._statuses[key] = self._version, status
        await self._wake()

    async def _wake(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    async def _wait(self, at_most_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with self._changed:
                await asyncio.wait_for(self._changed.wait(), at_most_s)

    def _hear_workers(self) -> None:
        assert self._channel is not None
        with contextlib.suppress(BlockingIOError):
            while True:
                self._reports.add(self._channel.recv(_MAX_REPORT_BYTES))
        if self._reports.is_awaited:
            asyncio.get_running_loop().create_task(self._wake())


def interface_of(address: str) -> str:
    """The network interface of this machine that has this address.

    >>> interface_of("127.0.0.1")
    'lo'
    """
    for name, addresses in psutil.net_if_addrs().items():
        if any(one.address.partition("%")[0] == address for one in addresses):
            return name
    raise OSError(f"no network interface of this node has the address {address} that Ray was started with")


def _environment_of(pid: int) -> dict[str, str]:
    """The environment that Ray was started with: its own workers have variables that jobs should not see."""
    with contextlib.suppress(OSError):
        entries = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        pairs = [os.fsdecode(entry).partition("=") for entry in entries if b"=" in entry]
        if pairs:
            return {name: value for name, _, value in pairs}
    return dict(os.environ)


def _bound(path: Path) -> socket.socket:
    """A datagram socket in a folder that only we can enter."""
    made = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
    path.unlink(missing_ok=True)
    made.bind(str(path))
    return made
