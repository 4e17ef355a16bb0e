"""When this process computes and when it waits for the network; called by ``overlap/``, ``worker/``, and the hooks.

    compute()           compute from here on: before forward, before an update
    border()            between two layers: the device may be asked back here
    with yielded():     wait for other workers: the device is free
    rest()              stop computing: training is over

[Note: never wait for a remote worker with the device]  Take two jobs on two hosts: on the first, A has the device and
waits for its worker on the second, where B has the device and waits for its worker on the first: a deadlock.  So every
wait for another worker is inside ``yielded()``; then no order of turns can deadlock two jobs.

[Note: later]  After a wait in the middle of forward or backward, we compute again, so the device is taken back
immediately.  Elsewhere (averaging gradients one after the other, clipping, small agreements) more waits often follow,
with next to nothing to compute in between.  Queueing for the device there would leave the network idle for a whole turn
of the other job.  So ``yielded(later=True)`` takes it back only if no other job wants it, and otherwise leaves that to
the next ``compute()``.  With ``insist=True``, only a job that does not have to give way to ours keeps it: a job that
computes between two such waits takes the device back from a filler.

Without a gate, every call here returns after one comparison.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

from weft.process import gate


class Turns:
    """This process's turns.  Used by the computing thread; calls of other threads do nothing."""

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self._now = now
        self._find_gate: Callable[[], None] = lambda: None
        self._hook_up: Callable[[Any], None] = lambda model: None
        self._forget()

    def _forget(self) -> None:
        """Reset; also in a forked child, whose parent keeps computing."""
        self._looked = False
        self._has = False
        self._window_open = False
        self._thread = 0
        self.num_inside = 0
        """Depth of nested forward passes: a wait inside one is followed by more compute."""
        self.turn_wait_s = 0.0
        """Total time spent waiting for our turn."""
        self.network_wait_s = 0.0
        """Total time spent waiting for other workers, behind a gate."""

    # ---- set up once

    def provide(self, find_gate: Callable[[], None], hook_up: Callable[[Any], None]) -> None:
        """Set how to find the gate when first needed, and how to make a model use it."""
        self._find_gate = find_gate
        self._hook_up = hook_up

    def look_for_gate(self) -> bool:
        """Whether we share.  Looked up at first use: a worker may be forked before its environment is set."""
        if gate.current() is gate.OPEN and not self._looked:
            self._looked = True
            self._find_gate()
        return gate.current() is not gate.OPEN

    def hook_up(self, model: Any) -> None:
        """Make a model that is not overlapped take turns, if we share."""
        if self.look_for_gate():
            self._hook_up(model)

    # ---- computing

    def compute(self) -> None:
        """Compute from here on; waits for our turn."""
        if self.look_for_gate():
            self._thread = threading.get_ident()
            self._take()

    def border(self) -> None:
        """Between two layers: give way if the device was asked back."""
        if self.computing:
            self._take()

    def rest(self) -> None:
        """Release the device until the next :meth:`compute`, if there is one."""
        self._has = False
        gate.current().release()

    def _take(self) -> None:
        began_s = self._now()
        gate.current().acquire()
        self.turn_wait_s += self._now() - began_s
        self._has = True

    # ---- waiting

    @property
    def computing(self) -> bool:
        """Whether the calling thread has the device, so that a wait would block other jobs."""
        return self._has and not self._window_open and threading.get_ident() == self._thread

    @property
    def sharing(self) -> bool:
        """Whether there is a gate and we have computed behind it."""
        return bool(self._thread) and gate.current() is not gate.OPEN

    @property
    def contended(self) -> bool:
        """Whether another job that does not have to give way to ours has or wants the device."""
        return gate.current().contended

    @property
    def gave_way(self) -> bool:
        """Whether another job has the device until our next :meth:`compute`."""
        return self.sharing and not self._has

    def yielded(self, *, later: bool = False, insist: bool = False, briefly: bool = False) -> Window:
        """A context in which the device is free; see [Note: later], and :class:`Gate` for ``briefly``."""
        return Window(self, later, insist, briefly) if self.computing else _NO_WINDOW

    def own_time_s(self) -> float:
        """A clock that stops while we wait for our turn, so that measured step times do not depend on other jobs."""
        return self._now() - self.turn_wait_s


class Window:
    """A wait for the network.  Nested windows, and those of threads that do not compute, do nothing."""

    def __init__(self, turns: Turns | None, later: bool, insist: bool, briefly: bool) -> None:
        self._turns = turns
        self._later = later
        self._insist = insist
        self._briefly = briefly
        self._began_s = 0.0

    def __enter__(self) -> None:
        turns = self._turns
        if turns is not None:
            turns._window_open = True
            self._began_s = turns._now()
            gate.current().release(briefly=self._briefly)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        turns = self._turns
        if turns is None:
            return
        turns._window_open = False
        turns.network_wait_s += turns._now() - self._began_s
        shared = gate.current()
        if self._later and (shared.contended if self._insist else shared.would_wait):
            turns._has = False
        else:
            turns._take()


_NO_WINDOW = Window(None, later=False, insist=False, briefly=False)
TURNS = Turns()
os.register_at_fork(after_in_child=TURNS._forget)
