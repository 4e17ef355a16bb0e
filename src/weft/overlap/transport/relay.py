"""Threads that pass on what a worker sums or receives for others.

[Note: why a thread]  With direct messages, a worker's compute thread is not needed once its gradients are sent.  On
hosts and in grids, others wait for what this worker makes of its neighbors' contributions, and the last of those may
arrive while this worker waits for something else.  If the sum were left to this worker's next call, two workers could
wait for each other forever: one in a collective of the training script, the other for the sum.  Between relays, the
thread sleeps.

A thread runs its relays in the order in which this worker launched them, which is the same on all workers for sums.
Workers may launch gathers in different orders, before or after any sum, so passing on gathered values needs a thread of
its own: otherwise a sum could wait behind values that another worker sends only after it has received the sum.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from weft.errors import OverlapError
from weft.overlap.transport.messages import settle
from weft.process.native_threads import NativeThread

_MAX_GOODBYE_S = 5.0


@dataclass
class Relay:
    """``run`` waits for what it needs and returns the messages it has launched; it must not refer to the transport."""

    run: Callable[[], list[Any]]
    timeout_s: float
    is_done: threading.Event = field(default_factory=threading.Event)
    error: Exception | None = None
    send_works: list[Any] = field(default_factory=list)

    def wait(self) -> None:
        """Wait until the messages are launched."""
        if not self.is_done.wait(self.timeout_s + 2 * _MAX_GOODBYE_S):
            raise OverlapError("gradients or parameters were not passed on in time: please report this")
        if self.error is not None:
            raise self.error

    def wait_until_sent(self) -> None:
        self.wait()
        settle(self.send_works)


@dataclass(frozen=True, slots=True)
class Awaited:
    """Stands for a message among those that are waited for."""

    wait: Callable[[], None]


class RelayThread:
    """One relay after another."""

    def __init__(self, name: str) -> None:
        self._relays: queue.SimpleQueue[Relay | None] = queue.SimpleQueue()
        self._thread = NativeThread(_serve, args=(self._relays,), name=name)
        self._thread.start()

    def add(self, relay: Relay) -> None:
        self._relays.put(relay)

    def stop(self) -> None:
        """Relays in the queue are finished first, unless they wait for another worker for long."""
        self._relays.put(None)
        self._thread.join(_MAX_GOODBYE_S)


def _serve(relays: queue.SimpleQueue[Relay | None]) -> None:
    """Refers only to the queue, so that it does not keep a discarded model alive."""
    while (relay := relays.get()) is not None:
        try:
            relay.send_works = relay.run()
        except Exception as error:
            relay.error = error
        relay.is_done.set()
        del relay
