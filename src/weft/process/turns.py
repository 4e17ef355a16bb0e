"""When this process computes and when it waits for the network: what ``overlap/``, ``worker/`` and the hooks call.

    compute()           from here on we compute: before forward, before an update
    border()            between two layers: a place where the device may be asked back
    with yielded():     we wait for other workers: the device is free meanwhile
    rest()              no more computing: the training is over

[Note: never wait for a remote worker with the device]  Two jobs on two hosts: on the first host A has the device and
waits for its worker on the second, where B has the device and waits for its worker on the first.  Nobody could go on.
So every wait for another worker is inside ``yielded()``; then no order of turns can lock two jobs up.

[Note: later]  After a wait in the middle of forward or backward we compute on, so the device is taken back at once.
Elsewhere (averaging gradients one after the other, clipping, agreeing on something) more waits often follow, and
between them is next to nothing to compute.  To queue for the device there would leave the network idle for a whole
turn of the other job.  ``yielded(later=True)`` therefore takes it back only if nobody wants it, and otherwise leaves
that to the next ``compute()``.  With ``insist=True`` only an equal keeps it: who has something to compute between
two such waits and is not there to fill the gaps of others takes the device back from those who are.

Without a gate (nobody to share with) every call here ends after one comparison.
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
    """This process's turns.  Used by the thread that computes; calls of other threads do nothing."""

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self._now = now
        self._find_gate: Callable[[], None] = lambda: None
        self._hook_up: Callable[[Any], None] = lambda model: None
        self._forget()

    def _forget(self) -> None:
        """As at the start; also in a forked child, whose parent goes on computing."""
        self._looked = False
        self._has = False
        self._window_open = False
        self._thread = 0
        self.num_inside = 0
        """Forward passes we are in: a wait there is followed by more compute."""
        self.turn_wait_s = 0.0
        """So long we have waited for our turn."""
        self.network_wait_s = 0.0
        """So long we have waited for other workers, behind a gate."""

    # ---- set up once

    def provide(self, find_gate: Callable[[], None], hook_up: Callable[[Any], None]) -> None:
        """How to find the gate when it is first needed, and how to make a model use it."""
        self._find_gate = find_gate
        self._hook_up = hook_up

    def look_for_gate(self) -> bool:
        """Whether we share.  Looked up once, at first use: a worker may be forked long before it is told."""
        if gate.current() is gate.OPEN and not self._looked:
            self._looked = True
            self._find_gate()
        return gate.current() is not gate.OPEN

    def hook_up(self, model: Any) -> None:
        """Make a model that nobody else watches compute and wait through here, if we share."""
        if self.look_for_gate():
            self._hook_up(model)

    # ---- computing

    def compute(self) -> None:
        """Compute from here on; waits for the turn."""
        if self.look_for_gate():
            self._thread = threading.get_ident()
            self._take()

    def border(self) -> None:
        """Between two layers; gives way if the device was asked back."""
        if self._has and not self._window_open and threading.get_ident() == self._thread:
            self._take()

    def rest(self) -> None:
        """Give the device back for good, or until the next :meth:`compute`."""
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
        """Whether the calling thread has the device and would keep others from it by waiting."""
        return self._has and not self._window_open and threading.get_ident() == self._thread

    @property
    def sharing(self) -> bool:
        """Whether there is a gate, and we have begun to compute behind it."""
        return bool(self._thread) and gate.current() is not gate.OPEN

    @property
    def contended(self) -> bool:
        """Whether another job that need not give way to ours has the device, or wants it."""
        return gate.current().contended

    @property
    def gave_way(self) -> bool:
        """Whether the device was left to another job until the next :meth:`compute`."""
        return self.sharing and not self._has

    def yielded(self, *, later: bool = False, insist: bool = False, briefly: bool = False) -> Window:
        """A context in which the device is free.

        Args:
            later: see [Note: later].
            insist: see there.
            briefly: for a few milliseconds; see the gate.
        """
        return Window(self, later, insist, briefly) if self.computing else _NO_WINDOW

    def own_time_s(self) -> float:
        """A clock that stands still while we wait for our turn: what a step costs does not depend on the others."""
        return self._now() - self.turn_wait_s


class Window:
    """A wait for the network.  Windows inside a window, and of threads that do not compute, do nothing."""

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
