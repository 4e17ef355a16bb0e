"""gloo's network threads, kept from interrupting compute for every packet.

[Note: batch]  gloo reads each connection in a thread of its own, which wakes up every few packets.  If it shares a core
with compute, it interrupts each time, about 1600 times per step, and leaves cold caches behind.  Under Linux's batch
policy, a waking thread waits until the running thread's time slice ends, a few milliseconds later, and then finds much
more to do at once; on an idle core it still runs immediately.  The link is not slowed: TCP's buffers hold far more than
a few milliseconds of data.  On two hosts with one core each (25 M parameters, 800 Mb/s), a step fell from 1574, 1574,
and 1459 ms to 1380, 1531, and 1336 ms in alternating runs.

This helps our own compute.  Once another job computes on the core while we wait for the network, it would only make our
wait longer: a worker that shares its device calls ``core_is_shared``.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

_NAME = "gloo_tcp_loop"
_TASKS = Path("/proc/self/task")

_ours: set[int] = set()
_is_core_shared = False


def network_threads() -> set[int]:
    """Thread ids of gloo's readers and writers in this process; empty on systems other than Linux."""
    found = set()
    for task in _TASKS.glob("*"):
        with contextlib.suppress(OSError):  # a thread may end in the meantime
            if (task / "comm").read_text().strip() == _NAME:
                found.add(int(task.name))
    return found


def let_compute_finish_first(threads: Iterable[int]) -> None:
    """Keep these threads from interrupting compute, as long as no other job shares the core."""
    _ours.update(threads)
    _set_policy()


def core_is_shared(is_shared: bool) -> None:
    """Say whether another job computes on the core while we wait: if so, our network threads get priority."""
    global _is_core_shared
    _is_core_shared = is_shared
    _set_policy()


def _set_policy() -> None:
    """Needs no privilege; if it is refused, only speed is affected."""
    _ours.intersection_update(network_threads())  # its id may belong to another thread by now
    for thread in _ours:
        with contextlib.suppress(OSError, AttributeError):
            policy = os.SCHED_OTHER if _is_core_shared else os.SCHED_BATCH
            os.sched_setscheduler(thread, policy, os.sched_param(0))
