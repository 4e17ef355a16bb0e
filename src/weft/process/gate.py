"""May this job compute now?  The only thing that ``overlap/`` and ``worker/`` know about sharing a device.

``crossover/`` provides a gate that asks this host's lease server; a job that does not share has an open one, which
costs an attribute lookup.  Gates affect speed, never correctness: every call may return immediately without the device.
"""

from __future__ import annotations

from typing import Protocol


class Gate(Protocol):
    """One job's access to its device.  Used only by the computing thread."""

    @property
    def contended(self) -> bool:
        """Whether another job that does not have to give way to ours has or wants the device.  No system call."""

    @property
    def would_wait(self) -> bool:
        """Whether another job has or wants the device, so that ``acquire`` might wait.  No system call."""

    def acquire(self) -> None:
        """Compute from here on; waits for our turn.

        If we already have the device, this is a border between two layers: it only reads memory, unless the device was
        asked back (a primary wants it, or we have had it for too long).  Then it gives up the device and waits for the
        next turn.  So call it often.
        """

    def release(self, *, briefly: bool = False) -> None:
        """Free the device before waiting for the network.  Does nothing if we do not have it.

        ``briefly``: for a few milliseconds, so only jobs that do not have to give way to ours may take it.  If the wait
        turns out to be longer, any job may.
        """


class OpenGate:
    """For a job that does not share."""

    contended = False
    would_wait = False

    def acquire(self) -> None: ...
    def release(self, *, briefly: bool = False) -> None: ...


OPEN = OpenGate()
_gate: Gate = OPEN


def current() -> Gate:
    return _gate


def install(gate: Gate) -> None:
    global _gate
    _gate = gate
