"""Stands in for the bridge and everything behind it: nodes, agents, and workers that report, without any of them.

    python -m benchmarks.simulated_nodes NUM_NODES DEVICES_PER_NODE COUNTS_FILE ... CHANNEL

The controller starts it instead of the bridge and cannot tell the difference: the same messages on the same stream,
and reports in the same datagrams, all of one node at once, each node at a moment of its own.
"""

from __future__ import annotations

import asyncio
import json
import socket
import sys
import threading
import time
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.record import write_whole
from weft.core.events import Fate
from weft.core.worker_environment import STOPPED_EXIT_CODE
from weft.engines import pool_messages
from weft.engines.local.records import Status
from weft.engines.ray.cluster_order import ClusterOrder, NodePart, RayNode
from weft.engines.ray.report_relay import ReportRelay

REPORT_EVERY_S = 1.0
STEP_S = 0.1
TOTAL_STEPS = 1_000_000

Key = tuple[str, int]


def nodes(num_nodes: int, num_devices: int) -> list[RayNode]:
    return [
        RayNode(f"id{number:05}", f"node{number:05}", f"10.0.{number // 250}.{number % 250 + 1}", num_devices)
        for number in range(num_nodes)
    ]


class SimulatedNodes:
    """Every attempt starts at once, takes ten steps a second, and ends when it is told to."""

    def __init__(self, channel: socket.socket, home: Path, simulated: list[RayNode], counts: Path) -> None:
        self._channel, self._nodes, self._counts = channel, simulated, counts
        self._relay = ReportRelay(home)
        self._running: dict[str, dict[Key, tuple[ClusterOrder, NodePart, float]]] = {
            node.node_id: {} for node in simulated
        }
        self._num_sent = 0
        self._ended = asyncio.Event()

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        threading.Thread(target=self._read, args=(loop,), daemon=True).start()
        ids = [node.node_id for node in self._nodes]
        usable = [asdict(node) for node in self._nodes]
        self._send({"kind": "nodes", "usable": usable, "alive": ids, "warnings": [], "is_complete": True})
        reporting = [
            loop.create_task(self._report(node_id, REPORT_EVERY_S * number / len(ids)))
            for number, node_id in enumerate(ids)
        ]
        counting = loop.create_task(self._count())
        await self._ended.wait()
        for task in (*reporting, counting):
            task.cancel()

    def _read(self, loop: asyncio.AbstractEventLoop) -> None:
        while True:
            received = pool_messages.receive(self._channel)
            message = {"kind": "close"} if received is None else received[0]
            loop.call_soon_threadsafe(self._take, message)
            if message["kind"] == "close":
                return

    def _take(self, message: dict[str, Any]) -> None:
        if message["kind"] == "close":
            self._ended.set()
            return
        order, now_s = ClusterOrder.from_json(message["order"]), time.time()
        key = order.job_id, order.attempt
        for part in order.parts:
            running = self._running[part.node_id]
            if message["kind"] == "start":
                running[key] = order, part, now_s
                self._tell(order, part, Status(started_s=now_s))
            elif message["kind"] in ("stop", "kill") and running.pop(key, None) is not None:
                ended = Status(started_s=now_s).ended(now_s, Fate.STOPPED, STOPPED_EXIT_CODE, "stopped")
                self._tell(order, part, ended)

    def _tell(self, order: ClusterOrder, part: NodePart, status: Status) -> None:
        about = {"job_id": order.job_id, "attempt": order.attempt, "node_id": part.node_id}
        self._send({"kind": "part", **about, "status": status.to_json()})

    async def _report(self, node_id: str, offset_s: float) -> None:
        due_s = time.monotonic() + offset_s
        while True:
            await asyncio.sleep(max(due_s - time.monotonic(), 0.0))
            due_s += REPORT_EVERY_S
            reports = [text for one in self._running[node_id].values() for text in _reports(*one)]
            self._num_sent += len(reports)
            self._relay.pass_on(reports)

    async def _count(self) -> None:
        while True:
            counted = {"sent": self._num_sent, "missed": self._relay.num_missed}
            await asyncio.to_thread(write_whole, self._counts, json.dumps(counted))
            await asyncio.sleep(0.5)

    def _send(self, message: dict[str, Any]) -> None:
        pool_messages.send(self._channel, message)


def _reports(order: ClusterOrder, part: NodePart, started_s: float) -> Iterable[bytes]:
    step = int((time.time() - started_s) / STEP_S)
    report = {
        "kind": "step",
        "job_id": order.job_id,
        "attempt": order.attempt,
        "world_size": order.num_workers,
        "step": step,
        "total_steps": TOTAL_STEPS,
        "step_s": STEP_S,
        "metrics": {"loss": 1.0 + 1.0 / (1 + step)},
        "memory_bytes": 1 << 30,
        "can_resume": True,
    }
    for number in range(len(part.devices)):
        yield json.dumps({**report, "rank": part.first_rank + number}).encode()


def main() -> None:
    num_nodes, num_devices, counts, *_, descriptor = sys.argv[1:]
    channel = socket.socket(fileno=int(descriptor))
    settings = pool_messages.receive(channel)
    if settings is None:
        return
    simulated = nodes(int(num_nodes), int(num_devices))
    asyncio.run(SimulatedNodes(channel, Path(settings[0]["home"]), simulated, Path(counts)).run())


if __name__ == "__main__":
    main()
