"""The faults, by kind.  Each leaves the world as a machine would be left: the controller may be gone."""

from __future__ import annotations

import contextlib
import json
import random
import signal
import socket
import time
from collections.abc import Callable

import psutil
from tests.faults.damage import damaged_attempt, damaged_knowledge, misplaced_file, permission_denied
from tests.faults.own_disk import DISK_BYTES
from tests.faults.runs import Run, lease_server
from tests.faults.violation import Violation
from tests.faults.world import World
from tests.hang_limit import HANG_S

Fault = Callable[[World, random.Random], None]
NUM_IDLE = 600
STOPPED_S = 0.5
_POLL_S = 0.02


def _kill(processes: list[psutil.Process], rng: random.Random) -> None:
    if processes:
        with contextlib.suppress(psutil.Error):
            rng.choice(processes).kill()


def _stop_for_a_while(processes: list[psutil.Process], rng: random.Random) -> None:
    if not processes:
        return
    process = rng.choice(processes)
    with contextlib.suppress(psutil.Error):
        process.send_signal(signal.SIGSTOP)
        time.sleep(STOPPED_S)
        process.send_signal(signal.SIGCONT)


def kill_controller(world: World, rng: random.Random) -> None:
    _kill(world.controllers(), rng)


def kill_worker(world: World, rng: random.Random) -> None:
    _kill(world.workers(), rng)


def kill_keeper(world: World, rng: random.Random) -> None:
    _kill(world.keepers(), rng)


def kill_zygote(world: World, rng: random.Random) -> None:
    _kill(world.zygotes(), rng)


def kill_everything(world: World, rng: random.Random) -> None:
    """As after a power failure."""
    for process in world.everything():
        with contextlib.suppress(psutil.Error):
            process.kill()


def stop_and_continue(world: World, rng: random.Random) -> None:
    """A process stands still for a while: swapped out, or under a debugger."""
    _stop_for_a_while(world.everything(), rng)


def lose_lease_server(world: World, rng: random.Random) -> None:
    """Jobs that take turns on a device lose the process that gives out the turns, or it stands still for a while."""
    while sum(run.shares and not run.is_over for run in world.runs) < 2:
        world.run(rng.randrange(60, 120), shares=True)
    deadline_s = time.monotonic() + HANG_S
    while lease_server(world.home.sockets)[1] < 2 and not any(run.is_over for run in world.runs if run.shares):
        if time.monotonic() > deadline_s:
            raise Violation("two runs with --share never met at a lease server")
        time.sleep(_POLL_S)
    rng.choice((_kill, _kill, _stop_for_a_while))(world.lease_servers(), rng)


def lose_run(world: World, rng: random.Random) -> None:
    """`weft run`, its pool or its worker is killed, or stands still for a while."""
    run = _a_run(world, rng)
    whose = rng.choice(("run", "pool", "worker"))
    if rng.random() < 0.25:
        _stop_for_a_while(run.processes(), rng)
    elif whose == "run":
        run.kill()
    else:
        _kill(run.pools() if whose == "pool" else run.workers(), rng)


def _a_run(world: World, rng: random.Random) -> Run:
    present = [run for run in world.runs if not run.is_over]
    return rng.choice(present) if present else world.run(rng.randrange(30, 80))


def disk_full(world: World, rng: random.Random) -> None:
    """No space for a while, during which jobs are submitted and end; then there is space again."""
    filler = world.disk / "filler"
    with contextlib.suppress(OSError), filler.open("wb") as file:
        for _ in range(DISK_BYTES // 65536 + 1):
            file.write(b"\0" * 65536)
    world.submit(rng.randrange(1, 10))
    time.sleep(rng.uniform(0.2, 1.2))
    filler.unlink()


def clock_jump(world: World, rng: random.Random) -> None:
    """The controller comes back to another time of day, or another year."""
    kill_controller(world, rng)
    world.shim.write_text(json.dumps({"clock_s": rng.choice((-1e9, -3600.0, 3600.0, 3.2e7))}))


def flood(world: World, rng: random.Random) -> None:
    """A client without a token holds as many connections as it can."""
    record = world.home.read_record()
    with contextlib.ExitStack() as held:
        for _ in range(NUM_IDLE if record else 0):
            with contextlib.suppress(OSError):
                held.enter_context(socket.create_connection(("127.0.0.1", record.port), timeout=5.0))
        world.client.jobs()
        world.submit(rng.randrange(1, 10))


def slow_disk(world: World, rng: random.Random) -> None:
    """Every commit takes a quarter of a second for a while."""
    before = json.loads(world.shim.read_text()) if world.shim.exists() else {}
    world.shim.write_text(json.dumps({**before, "commit_s": 0.25}))
    for _ in range(3):
        world.submit(rng.randrange(1, 10))
    world.client.jobs()
    world.shim.write_text(json.dumps(before))


KINDS: dict[str, Fault] = {
    fault.__name__: fault
    for fault in (
        kill_controller,
        kill_worker,
        kill_keeper,
        kill_zygote,
        kill_everything,
        stop_and_continue,
        lose_lease_server,
        lose_run,
        disk_full,
        permission_denied,
        damaged_attempt,
        misplaced_file,
        damaged_knowledge,
        clock_jump,
        flood,
        slow_disk,
    )
}
NEEDS_OWN_DISK = {"disk_full"}
