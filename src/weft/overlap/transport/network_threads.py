"""gloo's network threads, told not to interrupt the computing for every packet.

[Note: batch]  gloo reads each connection in a thread of its own, which wakes for every few packets.  Where it shares
a core with the computing it cuts in each time, some 1600 times a step, and leaves cold caches behind.  Under Linux's
batch policy a thread that wakes waits for the end of the running thread's time slice, a few milliseconds, and then
finds much more to do at once; on an idle core it runs at once as before.  The link does not notice: TCP's buffers hold
far more than a few milliseconds of data.  On two hosts of one core each (25 M parameters, 800 Mb/s) a step fell from
1574, 1574 and 1459 ms to 1380, 1531 and 1336 ms, runs taken in turn.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

_NAME = "gloo_tcp_loop"
_TASKS = Path("/proc/self/task")


def network_threads() -> set[int]:
    """Thread ids of gloo's readers and writers in this process; none where there is no Linux to tell."""
    found = set()
    for task in _TASKS.glob("*"):
        with contextlib.suppress(OSError):  # a thread may end while we look
            if (task / "comm").read_text().strip() == _NAME:
                found.add(int(task.name))
    return found


def let_computing_finish_first(threads: Iterable[int]) -> None:
    """These threads no longer cut in.  Needs no privilege; where it is not allowed nothing changes but speed."""
    for thread in threads:
        with contextlib.suppress(OSError, AttributeError):
            os.sched_setscheduler(thread, os.SCHED_BATCH, os.sched_param(0))
