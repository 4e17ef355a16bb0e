"""Kills the workers of a node that is no longer part of the cluster, so that nothing runs twice.

When a node is lost, its jobs are restarted on other nodes, and workers still running here would write to the same
checkpoints.  Nobody can reach this node to kill them, so a process here does, when the raylet exits or when the head
has not been reachable for :data:`FENCE_S`.  Ray takes longer than that to declare a node dead (five health checks,
three seconds apart).  A head that refuses connections is reachable: it is restarting, and no other node was given our
jobs.

It needs no ray, no torch, and no agent.  One per node and home; a second one exits immediately.
"""

from __future__ import annotations

import errno
import os
import select
import signal
import socket
import sys
import time
from pathlib import Path

from weft.engines import process_tree
from weft.engines.local.folders import HomeLock
from weft.engines.local.process import MARK, Process, of_this_user
from weft.errors import EngineError

FENCE_S = 10.0
LOOK_EVERY_S = 1.0
_REACHED_WITHIN_S = 2.0
CLOSED = "closed"
"""A file in the engine's folder: nothing runs here anymore, and nothing will."""


def marked(engine: Path) -> list[Process]:
    """Every process of this engine."""
    sign = f"{MARK}={engine}".encode()
    pids = [pid for pid, _, environment in of_this_user() if sign in environment and pid != os.getpid()]
    return [process for process in map(Process.of, pids) if process is not None]


def end_all(engine: Path) -> None:
    """Kill until nothing is left: a process may fork while we look at it."""
    while processes := marked(engine):
        for process in processes:
            process.signal(signal.SIGKILL)
        time.sleep(0.05)


def is_reachable(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=_REACHED_WITHIN_S).close()
    except OSError as error:
        return error.errno == errno.ECONNREFUSED
    return True


def watch(engine: Path, raylet: int, head: str) -> None:
    """Watch until there is nothing left to watch over."""
    seen_s = time.monotonic()
    while not (engine / CLOSED).exists():
        if select.select([raylet], [], [], LOOK_EVERY_S)[0]:
            end_all(engine)
            return
        if is_reachable(head):
            seen_s = time.monotonic()
        elif time.monotonic() - seen_s > FENCE_S:
            end_all(engine)


def main() -> None:
    engine, raylet_pid, head = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    if os.fork():
        os._exit(0)  # so that the process that started us need not wait, and does not take us with it when it exits
    os.setsid()
    process_tree.rename("weft-warden")
    try:
        lock = HomeLock(engine / "warden.lock")
        raylet = os.pidfd_open(raylet_pid)
    except (EngineError, ProcessLookupError):
        return
    watch(engine, raylet, head)
    lock.release()


if __name__ == "__main__":
    main()
