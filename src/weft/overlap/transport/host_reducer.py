"""A thread that sums the contributions of a host's workers and sends the sums to other hosts.

[Note: why a thread]  With direct messages, a worker's compute thread is not needed once its gradients are sent.  Here,
the last neighbor may finish a bucket while this worker waits for something else, and other hosts wait for the sum.  If
the sum were left to this worker's next call, two workers could wait for each other forever: one in a collective of the
training script, the other for the sum.  Between sums, the thread sleeps.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from weft.errors import OverlapError
from weft.overlap.transport.host_memory import Done, HostMemory
from weft.overlap.transport.host_sum import add_host

_MAX_GOODBYE_S = 5.0


@dataclass
class HostSum:
    """One bucket of one round: this host's sums of the rows that this worker is the delegate for."""

    memory: HostMemory
    index: int
    count: int
    # For each row: where its sum goes, and what sends it; our own stays here.
    rows: Sequence[tuple[int, torch.Tensor, Callable[[], Any] | None]]
    send: torch.Tensor
    is_added: threading.Event = field(default_factory=threading.Event)
    error: Exception | None = None
    send_works: list[Any] = field(default_factory=list)

    def run(self) -> None:
        memory = self.memory
        memory.await_all(Done.CONTRIBUTED, self.index, self.count, "send gradients")
        sends = [memory.of_neighbor(self.send, neighbor) for neighbor in memory.neighbors]
        for row, total, launch in self.rows:
            add_host([send[row] for send in sends], out=total)
            if launch is not None:
                self.send_works.append(launch())
        memory.tell(Done.ADDED, self.index)

    def wait(self) -> None:
        """Wait until the sums are complete."""
        if not self.is_added.wait(self.memory.timeout_s + 2 * _MAX_GOODBYE_S):
            raise OverlapError("this host's gradients were not summed in time: please report this")
        if self.error is not None:
            raise self.error


class SumSent:
    """Complete when nothing reads a :class:`HostSum`'s memory: its sums are sent, and neighbors have made theirs."""

    def __init__(self, host_sum: HostSum) -> None:
        self._host_sum = host_sum

    def wait(self) -> None:
        self._host_sum.wait()
        for work in self._host_sum.send_works:
            work.wait()
        memory = self._host_sum.memory
        memory.await_all(Done.ADDED, self._host_sum.index, self._host_sum.count, "sum gradients")


class HostReducer:
    """The thread: one sum after another, in the order in which this worker launched them."""

    def __init__(self) -> None:
        self._sums: queue.SimpleQueue[HostSum | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=_serve, args=(self._sums,), name="weft-host-sums", daemon=True)
        self._thread.start()

    def add_up(self, host_sum: HostSum) -> None:
        self._sums.put(host_sum)

    def stop(self) -> None:
        """Sums in the queue are finished first, unless they wait for a neighbor; the memory must be closed already."""
        self._sums.put(None)
        self._thread.join(_MAX_GOODBYE_S)


def _serve(sums: queue.SimpleQueue[HostSum | None]) -> None:
    """Refers only to the queue, so that it does not keep a discarded model alive."""
    while (host_sum := sums.get()) is not None:
        try:
            host_sum.run()
        except Exception as error:
            host_sum.error = error
        host_sum.is_added.set()
        del host_sum
