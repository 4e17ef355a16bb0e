"""Which failure was the cause, and which were its consequences. Pure: facts in, words out."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

HUNG_EXIT_CODE = 124  # what timeout(1) leaves with


class WorkerFate(Enum):
    """How a worker ended that should not have."""

    EXITED = "exited"  # left with a code other than 0
    KILLED = "killed"  # by a signal we did not send
    HUNG = "hung"  # stood still; its peers were waiting for it


@dataclass(frozen=True)
class Failure:
    """One worker's end. ``time_s`` is the monotonic clock when it failed, not when its process was gone."""

    rank: int
    time_s: float
    fate: WorkerFate
    code: int = 0  # exit code, or the signal's number
    error: str = ""  # first line of what it raised
    dead_child: str = ""  # a process of its own that had failed by then, in words

    def __str__(self) -> str:
        match self.fate:
            case WorkerFate.HUNG:
                return self.error
            case WorkerFate.KILLED:
                return f"it was killed by {signal_name(self.code)}" + OUT_OF_MEMORY * (self.code == signal.SIGKILL)
            case WorkerFate.EXITED:
                words = f"{self.error} (exit code {self.code})" if self.error else f"it left with exit code {self.code}"
                return f"{self.dead_child}, then {words}" if self.dead_child else words

    @property
    def exit_code(self) -> int:
        """What ``weft run`` leaves with when this was the cause; shells show a signal as 128 + its number."""
        match self.fate:
            case WorkerFate.HUNG:
                return HUNG_EXIT_CODE
            case WorkerFate.KILLED:
                return 128 + self.code
            case WorkerFate.EXITED:
                return self.code

    @property
    def may_be_consequence(self) -> bool:
        """Whether a worker says this when another one is gone."""
        if self.fate is WorkerFate.KILLED:
            return self.code in (signal.SIGABRT, signal.SIGPIPE)  # torch aborts when a watchdog thread gives up
        own_fault = self.fate is WorkerFate.HUNG or self.dead_child
        return not own_fault and PEER_IS_GONE.search(self.error) is not None


OUT_OF_MEMORY = ": by hand, or by the kernel when memory ran out (`dmesg` tells)"
PEER_IS_GONE = re.compile(
    r"connection (was )?(closed|reset|refused)|broken pipe|socket (closed|timeout)|gloo|nccl|peer|did not answer|"
    r"DistBackendError|DistNetworkError|DistStoreError|(?<!DataLoader )timed out",
    re.IGNORECASE,
)


def signal_name(number: int) -> str:
    try:
        return f"{signal.Signals(number).name} (signal {number})"
    except ValueError:  # real-time signals have no names of their own
        return f"signal {number}"


def root_cause(failures: Sequence[Failure]) -> Failure:
    """The failure to show first.

    The earliest one, except that a worker which lost its connection failed because of somebody else: the one
    that raised may take longer to get its traceback out than its peers take to notice.
    """
    return min(failures, key=lambda failure: (failure.may_be_consequence, failure.time_s))


def explain(failures: Sequence[Failure], *, stderr_tail: Sequence[str], num_workers: int, ran_s: float) -> list[str]:
    """The report of a failed attempt, first cause first."""
    cause = root_cause(failures)
    lines = [f"worker {cause.rank} failed first, after {ran_s:.1f} s: {cause}"]
    if stderr_tail:
        lines.append(f"last lines of worker {cause.rank}'s stderr:")
        lines += [f"  | {line}" for line in stderr_tail]
    others = sorted((failure for failure in failures if failure is not cause), key=lambda other: other.time_s)
    lines += [f"worker {other.rank} failed after it: {other}" for other in others]
    silent = sorted(set(range(num_workers)) - {failure.rank for failure in failures})
    if silent and cause.may_be_consequence:
        lines.append(f"{_workers(silent)} neither failed nor answered: look there for the cause")
    elif silent:
        lines.append(f"{_workers(silent)} {'were' if len(silent) > 1 else 'was'} stopped")
    return lines


def _workers(ranks: Sequence[int]) -> str:
    """
    >>> _workers([0, 2, 3])
    'workers 0, 2 and 3'
    """
    if len(ranks) == 1:
        return f"worker {ranks[0]}"
    return f"workers {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"
