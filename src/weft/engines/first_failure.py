"""Which failure was the cause, and which were its consequences.  Pure: facts in, sentences out."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from weft.core.worker_environment import HUNG_EXIT_CODE


class WorkerFate(Enum):
    """How a worker failed."""

    EXITED = "exited"  # with a code other than 0
    KILLED = "killed"  # by a signal we did not send
    HUNG = "hung"  # made no progress while its peers waited for it


@dataclass(frozen=True)
class Failure:
    """One worker's failure.  ``time_s`` is when it failed (monotonic clock), not when its process ended."""

    rank: int
    time_s: float
    fate: WorkerFate
    code: int = 0  # exit code, or the signal's number
    error: str = ""  # first line of what it raised
    dead_child: str = ""  # a child process that had failed by then, in words

    def __str__(self) -> str:
        match self.fate:
            case WorkerFate.HUNG:
                return self.error
            case WorkerFate.KILLED:
                return f"it was killed by {signal_name(self.code)}" + OUT_OF_MEMORY * (self.code == signal.SIGKILL)
            case WorkerFate.EXITED:
                end = f"{self.error} (exit code {self.code})" if self.error else f"it exited with code {self.code}"
                return f"{self.dead_child}, then {end}" if self.dead_child else end

    @property
    def exit_code(self) -> int:
        """The exit code of ``weft run`` if this was the cause; shells show a signal as 128 + its number."""
        match self.fate:
            case WorkerFate.HUNG:
                return HUNG_EXIT_CODE
            case WorkerFate.KILLED:
                return 128 + self.code
            case WorkerFate.EXITED:
                return self.code

    @property
    def may_be_consequence(self) -> bool:
        """Whether a worker fails like this when another one is gone."""
        if self.fate is WorkerFate.KILLED:
            return self.code in (signal.SIGABRT, signal.SIGPIPE)  # torch aborts when its watchdog times out
        own_fault = self.fate is WorkerFate.HUNG or self.dead_child
        return not own_fault and PEER_IS_GONE.search(self.error) is not None


OUT_OF_MEMORY = ": manually, or by the kernel when memory ran out (see `dmesg`)"
PEER_IS_GONE = re.compile(
    r"connection (was )?(closed|reset|refused)|broken pipe|socket (closed|timeout)|gloo|nccl|peer|did not answer|"
    r"DistBackendError|DistNetworkError|DistStoreError|(?<!DataLoader )timed out",
    re.IGNORECASE,
)


def signal_name(number: int) -> str:
    try:
        return f"{signal.Signals(number).name} (signal {number})"
    except ValueError:  # real-time signals have no names
        return f"signal {number}"


def root_cause(failures: Sequence[Failure]) -> Failure:
    """The failure to show first.

    The earliest one, except that a lost connection is a consequence of another failure: a worker that raised may take
    longer to print its traceback than its peers take to notice.
    """
    return min(failures, key=lambda failure: (failure.may_be_consequence, failure.time_s))


def explain(
    failures: Sequence[Failure], *, stderr_tail: Sequence[str], num_workers: int, ran_s: float, first_rank: int = 0
) -> list[str]:
    """The report of a failed attempt, first cause first."""
    cause = root_cause(failures)
    lines = [f"worker {cause.rank} failed first, after {ran_s:.1f} s: {cause}"]
    if stderr_tail:
        lines.append(f"last lines of worker {cause.rank}'s stderr:")
        lines += [f"  | {line}" for line in stderr_tail]
    others = sorted((failure for failure in failures if failure is not cause), key=lambda other: other.time_s)
    lines += [f"worker {other.rank} failed after it: {other}" for other in others]
    silent = sorted(set(range(first_rank, first_rank + num_workers)) - {failure.rank for failure in failures})
    if silent and cause.may_be_consequence:
        lines.append(f"{_workers(silent)} neither failed nor responded: look there for the cause")
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
