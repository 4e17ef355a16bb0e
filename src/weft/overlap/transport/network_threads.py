"""gloo's network threads, told not to interrupt the computing for every packet.

[Note: batch]  gloo reads each connection in a thread of its own, which wakes for every few packets.  Where it shares
a core with the computing it cuts in each time, some 1600 times a step, and leaves cold caches behind.  Under Linux's
batch policy a thread that wakes waits for the end of the running thread's time slice, a few milliseconds, and then
finds much more to do at once; on an idle core it runs at once as before.  The link does not notice: TCP's buffers hold
far more than a few milliseconds of data.  On two hosts of one core each (25 M parameters, 800 Mb/s) a step fell from
1574, 1574 and 1459 ms to 1380, 1531 and 1336 ms, runs taken in turn.

That is good manners towards our own computing.  Once another job computes on the core while we wait for the network,
it would only make our wait longer: whoever shares a device says ``core_is_shared``.
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
    """Thread ids of gloo's readers and writers in this process; none where there is no Linux to tell."""
    found = set()
    for task in _TASKS.glob("*"):
        with contextlib.suppress(OSError):  # a thread may end while we look
            if (task / "comm").read_text().strip() == _NAME:
                found.add(int(task.name))
    return found


def let_computing_finish_first(threads: Iterable[int]) -> None:
    """These threads of ours no longer cut in, while the core is ours alone."""
    _ours.update(threads)
    _set_policy()


def core_is_shared(is_shared: bool) -> None:
    """Whether another job computes on the core while we wait for the network: then our network threads go first."""
    global _is_core_shared
    _is_core_shared = is_shared
    _set_policy()


def _set_policy() -> None:
    """Needs no privilege; where it is not allowed nothing changes but speed."""
    _ours.intersection_update(network_threads())  # the number of one that has ended may be another's by now
    for thread in _ours:
        with contextlib.suppress(OSError, AttributeError):
            policy = os.SCHED_OTHER if _is_core_shared else os.SCHED_BATCH
            os.sched_setscheduler(thread, policy, os.sched_param(0))
