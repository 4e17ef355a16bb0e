"""The gate of a job that shares its device (skeleton: names are final, the body follows)."""

from __future__ import annotations

from collections.abc import Mapping

from weft.core.gate import OPEN, Gate
from weft.core.worker_environment import LEASE


def gate_from_environment(environment: Mapping[str, str]) -> Gate:
    """The gate this worker computes behind: a ``LeaseGate`` where WEFT_LEASE names a server, else the open one.

    Never raises for a server that is not there: the job runs unshared and joins when the server comes.
    """
    if LEASE not in environment:
        return OPEN
    return OPEN
