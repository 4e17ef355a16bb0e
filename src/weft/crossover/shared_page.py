"""The memory that the server shares with one client, so that a free device costs no system call.

    word 0   token of the client's lease, 0 for none    written by the server only
    word 1   number of other jobs that wait             "
    word 2   1 when the device is asked back            "
    word 3   number of other jobs that have the device or wait for it, and need not give way to this one    "
    word 8   what the client does: idle, paused, waiting, computing    written by the client only
    word 9   number of its present or next turn                        "

[Note: two writers, no locks]
Nobody writes what the other one writes, and each writes before it looks: a client that begins to compute writes
"computing" and then looks for its token; a server that takes a lent lease away clears the token and then
looks whether the client computes.  So at least one of them sees what the other did.  If both do, the server puts the
token back and the client, which went to ask, accepts only a newer one.  The same way round for the end of a turn:
a client writes "idle" and then looks whether anybody waits; the server writes that somebody waits and then looks
whether the client is idle.  Processors may delay a write past a later read, so the server has the kernel issue a
memory barrier on every core that runs a client (``membarrier``).  Where that cannot be had the worst is that two jobs
compute at once until the next border, or that a tick of the arbiter finds the idle holder.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from typing import Final

PAGE_BYTES: Final = 4096

TOKEN: Final = 0
NUM_WAITING: Final = 1
ASKED_BACK: Final = 2
NUM_EQUALS: Final = 3
STATE: Final = 8
TURN: Final = 9

IDLE: Final = 0
WAITING: Final = 1
COMPUTING: Final = 2
PAUSED: Final = 3
"""In a gap that is probably too short to be worth a handover."""


def make_page() -> int:
    """A file descriptor of fresh memory that nobody can shrink under the other's feet."""
    descriptor = os.memfd_create("weft-lease", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, PAGE_BYTES)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    return descriptor


class Page:
    """The mapped memory; ``words`` reads and writes whole aligned words."""

    def __init__(self, descriptor: int) -> None:
        self._memory = mmap.mmap(descriptor, PAGE_BYTES)
        self._bytes = memoryview(self._memory)
        self.words = self._bytes.cast("Q")

    def close(self) -> None:
        """Unmap it; whoever still has ``words`` must not use them."""
        self.words.release()
        self._bytes.release()
        self._memory.close()
