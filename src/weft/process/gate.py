"""May this job compute now?  What ``overlap/`` and ``worker/`` know of sharing a device: take it, give it back.

``crossover/`` has a gate that asks the lease server of this host; a job that shares with nobody has an open one,
which costs an attribute look-up.  A gate is a matter of speed and never of correctness: every call may return at
once without the device.
"""

from __future__ import annotations

from typing import Protocol


class Gate(Protocol):
    """One job's way to its device.  Used by the thread that computes, and by no other."""

    @property
    def contended(self) -> bool:
        """Whether another job that need not give way to ours has the device or wants it.  Costs no system call."""

    @property
    def would_wait(self) -> bool:
        """Whether another job has the device or wants it, so that ``acquire`` might wait.  Costs no system call."""

    def acquire(self) -> None:
        """Compute from here on; waits for the turn.

        When the device is ours already this is a border between two layers: it costs a look at memory, unless
        the device was asked back (a primary came, or we had it for too long).  Then it is given away here, and
        the next turn is waited for.  So call it often.
        """

    def release(self, *, briefly: bool = False) -> None:
        """About to wait for the network: the device is free.  Does nothing when it is not ours.

        ``briefly``: for a few milliseconds, so that only our equals need hear of it.  If it becomes longer everybody
        does.
        """


class OpenGate:
    """Nobody to share with."""

    contended = False
    would_wait = False

    def acquire(self) -> None:
        """Always our turn."""

    def release(self, *, briefly: bool = False) -> None:
        """Nobody waits."""


OPEN = OpenGate()
_gate: Gate = OPEN


def current() -> Gate:
    """The gate of this process."""
    return _gate


def install(gate: Gate) -> None:
    """From now on this process computes behind ``gate``."""
    global _gate
    _gate = gate
