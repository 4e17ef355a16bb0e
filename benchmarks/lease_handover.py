"""What a handover of the lease costs.

    python -m benchmarks.lease_handover [--quick] [--out FOLDER]

Two processes and a lease server.  The one that waits says when it got the device, the other when it gave it back; a
handover is the time between the two.  Also the cost of the gate without contention, and how long a waiting job
still waits after the holder, or the server, was killed.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import signal
import statistics
import tempfile
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path

from benchmarks.figures import Document, draw_costs, finish
from benchmarks.program import parse
from benchmarks.record import markdown_table
from weft.crossover.lease_client import LeaseGate
from weft.crossover.lease_launch import ensure_server, status
from weft.crossover.lease_messages import Join
from weft.crossover.server import main as serve

TURN_S = 0.004
GAP_S = 0.002
"""Long enough not to be bypassed, shorter than a turn: whoever comes back finds the other at work and waits."""
MAX_WAIT_AFTER_DEATH_S = 0.05
NUM_UNCONTENDED = 20_000


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


def uncontended_s(path: Path) -> float:
    """Time of one ``release`` and ``acquire`` without contention."""
    gate = LeaseGate(str(path), Join("alone", "1"))
    gate.acquire()
    begin_s = time.perf_counter()
    for _ in range(NUM_UNCONTENDED):
        gate.release()
        gate.acquire()
    took_s = time.perf_counter() - begin_s
    gate.close()
    return took_s / NUM_UNCONTENDED


def _hold(path: str, job: str, reports: Connection) -> None:
    gate = LeaseGate(path, Join(job, "0"))
    reports.send("joined")
    gate.acquire()
    reports.send(time.monotonic())
    signal.pause()


def wait_after_death_s(home: Path, *, of_server: bool) -> float:
    """How long a waiting job still waits after a SIGKILL of the holder, or of the server."""
    context = multiprocessing.get_context("spawn")
    path = home / "killed.sock"
    path.unlink(missing_ok=True)  # of the last one
    server = context.Process(target=serve, args=(["--socket", str(path)],))
    server.start()
    processes: list[SpawnProcess] = []
    ends: list[Connection] = []
    while not path.exists():
        time.sleep(0.01)
    for job in ("holder", "waiter"):
        mine, theirs = context.Pipe(duplex=False)
        processes.append(context.Process(target=_hold, args=(str(path), job, theirs)))
        processes[-1].start()
        ends.append(mine)
        mine.recv()
        if job == "holder":
            mine.recv()
    while not any(job["waiting"] for job in status(path)["devices"]["0"]["jobs"]):
        time.sleep(0.01)
    victim = server if of_server else processes[0]
    killed_s = time.monotonic()
    victim.kill()
    took_s = float(ends[1].recv()) - killed_s
    for process in (server, *processes):
        process.kill()
        process.join()
    return took_s


def tables(document: Document) -> str:
    """All in milliseconds."""
    body = [
        [row["what"], f"{row['measured_ms']:g}", "-" if row["allowed_ms"] is None else f"{row['allowed_ms']:g}"]
        for row in document["rows"]
    ]
    lines = markdown_table(["what", "milliseconds", "allowed"], body)
    return "\n".join(
        [f"{document['num_handovers']} handovers, {document['num_deaths']} kills of each kind.", "", *lines]
    )


def draw(document: Document, path: Path) -> None:
    costs = [
        (row["what"], row["measured_ms"], row["allowed_ms"], f"{row['measured_ms']:g} ms")
        for row in document["rows"]
        if row["allowed_ms"] is not None
    ]
    draw_costs("What handing over a device costs", costs, document, path)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--turns", type=int, help="of each job; default: 200, with --quick 50")
    parser.add_argument("--core", type=int, help="both jobs on this core, as when a core is the shared device")
    parser.add_argument("--deaths", type=int, help="how often holder and server are killed; default: 5, with --quick 2")
    options, folder = parse(parser, argv, quick="fewer turns and kills")
    num_turns = options.turns or (50 if options.quick else 200)
    num_deaths = options.deaths or (2 if options.quick else 5)
    with tempfile.TemporaryDirectory() as home:
        path = ensure_server(Path(home), linger_s=60.0)
        alone_s = uncontended_s(path)
        times_s = sorted(handovers_s(path, num_turns, options.core))
        killed_s = [wait_after_death_s(Path(home), of_server=False) for _ in range(num_deaths)]
        unserved_s = [wait_after_death_s(Path(home), of_server=True) for _ in range(num_deaths)]
    measured = (
        ("handover, median", statistics.median(times_s), None),
        ("handover, 90th percentile", times_s[len(times_s) * 9 // 10], None),
        ("release and acquire with nobody waiting", alone_s, None),
        ("next grant after the holder was killed, worst", max(killed_s), MAX_WAIT_AFTER_DEATH_S),
        ("next grant after the server was killed, worst", max(unserved_s), MAX_WAIT_AFTER_DEATH_S),
    )
    rows = [
        {"what": what, "measured_ms": round(1e3 * s, 4), "allowed_ms": None if most is None else 1e3 * most}
        for what, s, most in measured
    ]
    document = {"num_handovers": len(times_s), "num_deaths": num_deaths, "rows": rows}
    core = "" if options.core is None else f" --core {options.core}"
    command = f"python -m benchmarks.lease_handover --turns {num_turns} --deaths {num_deaths}{core}"
    finish("lease_handover", command, document, tables, draw, folder)


if __name__ == "__main__":
    main()
