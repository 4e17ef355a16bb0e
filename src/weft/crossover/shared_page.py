"""The memory that the server shares with one client, so that using a free device needs no system call.

Written only by the server:
    word 0   token of the client's lease, 0 for none
    word 1   number of other jobs that wait
    word 2   1 when the device is asked back
    word 3   number of other jobs that have or want the device and need not give way to this one
Written only by the client:
    word 8   its state: idle, paused, waiting, computing
    word 9   number of its current or next turn

[Note: two writers, no locks] Each side writes its own words before it reads the other's.  A client that begins to
compute writes "computing" and then reads its token; a server that takes a lent lease away clears the token and then
reads the client's state.  So at least one of them sees the other's write.  If both do, the server restores the token,
and the client, which asks for the device, accepts only a newer one.  The end of a turn works the same way: the client
writes "idle" and then reads whether another job waits; the server writes that a job waits and then reads whether the
client is idle.  Processors may delay a write past a later read, so the server makes the kernel issue a memory barrier
on every core that runs a client (``membarrier``).  Without that call, the worst case is that two jobs compute at the
same time until the next border, or that an idle holder is noticed only at the arbiter's next tick.
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
    """A file descriptor of new memory that neither side can shrink."""
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
        """Unmap it; ``words`` must not be used afterwards."""
        self.words.release()
        self._bytes.release()
        self._memory.close()
