"""What a handover of the lease costs: ``python -m benchmarks.lease_handover``.

Two processes and a lease server.  The one that waits says when it got the device, the other when it gave it back; a
handover is the time between the two.  Also the cost of the gate when nobody else is there.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path

from weft.crossover.client import LeaseGate
from weft.crossover.launch import ensure_server
from weft.crossover.messages import Join

TURN_S = 0.004
GAP_S = 0.002
"""Long enough not to be bypassed, shorter than a turn: whoever comes back finds the other at work and waits."""


def _take_turns(path: str, job: str, num_turns: int, core: int | None, reports: Connection) -> None:
    if core is not None:
        os.sched_setaffinity(0, {core})
    gate = LeaseGate(path, Join(job, "0"))
    turns: list[tuple[float, float]] = []
    for _ in range(num_turns):
        gate.acquire()
        begin_s = time.monotonic()
        while time.monotonic() < begin_s + TURN_S:
            pass
        turns.append((begin_s, time.monotonic()))
        gate.release()
        time.sleep(GAP_S)
    gate.close()
    reports.send(turns)


def handovers_s(path: Path, num_turns: int, core: int | None) -> list[float]:
    """Times between the end of one job's turn and the beginning of the other's."""
    context = multiprocessing.get_context("spawn")
    ends = []
    for job in ("a", "b"):
        mine, theirs = context.Pipe(duplex=False)
        context.Process(target=_take_turns, args=(str(path), job, num_turns, core, theirs)).start()
        theirs.close()
        ends.append((job, mine))
    turns = sorted((begin_s, end_s, job) for job, end in ends for begin_s, end_s in end.recv())
    both = range(num_turns // 2, len(turns) - num_turns // 2)  # at the ends one of them may be alone
    return [turns[i + 1][0] - turns[i][1] for i in both if turns[i][2] != turns[i + 1][2]]


def uncontended_s(path: Path, num: int = 20000) -> float:
    """Time of one ``release`` and ``acquire`` when nobody else is there."""
    gate = LeaseGate(str(path), Join("alone", "1"))
    gate.acquire()
    begin_s = time.perf_counter()
    for _ in range(num):
        gate.release()
        gate.acquire()
    took_s = time.perf_counter() - begin_s
    gate.close()
    return took_s / num


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=200)
    parser.add_argument("--core", type=int, help="both jobs on this core, as when a core is the shared device")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as home:
        path = ensure_server(Path(home), linger_s=1.0)
        alone_s = uncontended_s(path)
        times_s = sorted(handovers_s(path, options.turns, options.core))
    row = {
        "num_handovers": len(times_s),
        "median_ms": round(statistics.median(times_s) * 1e3, 3),
        "p90_ms": round(times_s[len(times_s) * 9 // 10] * 1e3, 3),
        "uncontended_us": round(alone_s * 1e6, 2),
    }
    print(json.dumps(row))


if __name__ == "__main__":
    main()
