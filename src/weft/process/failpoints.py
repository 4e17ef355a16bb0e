"""Points at which a test can kill a process, to check that nothing is lost there.

``WEFT_FAILPOINT=journal.before_commit`` kills the process with SIGKILL the first time it gets there;
``journal.before_commit:3`` the third time.  Without the variable, a fail point costs one environment lookup.  All names
are in ``FAILPOINTS``, so that a test can cover every one.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from typing import Final

from weft.errors import UsageError

VARIABLE: Final = "WEFT_FAILPOINT"

FAILPOINTS: Final = (
    "journal.before_commit",
    "journal.after_commit",
    "snapshot.before_commit",
    "snapshot.after_commit",
    "backup.before_rename",
    "backup.after_rename",
    "purge.before_event",
    "compact.before_commit",
    "compact.after_commit",
    "compact.after_vacuum",
    "controller.before_start",
    "controller.after_start",
    "controller.before_stop",
    "controller.after_stop",
    "controller.before_kill",
    "controller.after_kill",
    "controller.before_forget",
    "controller.after_forget",
    "engine.before_order",
    "engine.after_order",
    "keeper.before_claim",
    "keeper.after_claim",
    "keeper.after_start",
    "keeper.before_outcome",
    "keeper.after_outcome",
)

_visits: Counter[str] = Counter()


def failpoint(name: str) -> None:
    """Kill this process here if the environment variable says so."""
    wanted = os.environ.get(VARIABLE)
    if not wanted:
        return
    point, _, nth = wanted.partition(":")
    if point not in FAILPOINTS or not (nth.isdecimal() and int(nth) > 0 if nth else True):
        raise UsageError(f"{VARIABLE}={wanted}: expected name or name:nth, with a name from {', '.join(FAILPOINTS)}")
    if point != name:
        return
    _visits[name] += 1
    if _visits[name] == int(nth or 1):
        os.kill(os.getpid(), signal.SIGKILL)
