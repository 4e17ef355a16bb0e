"""Kill -9 the processes between the controller and its workers: no worker starts twice, is lost, or is left behind."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.contract.benches import LocalBench, events_until, marked, said, start, until, wait_for
from tests.hang_limit import HANG_S

from weft.core.events import Fate, WorkersExited, WorkersStarted
from weft.engines.local.folders import Folders
from weft.engines.local.zygote_client import ZygoteClient
from weft.process.failpoints import FAILPOINTS, VARIABLE

CONTROLLER = """
import select, sys
from pathlib import Path
from tests.contract.benches import LocalBench, start

bench = LocalBench(Path(sys.argv[1]), warm=False)
for job in sys.argv[2:]:
    start(bench, job, "save", devices=(0,))
print("started", flush=True)
while True:
    select.select([bench.engine.fileno()], [], [])
    for event in bench.engine.poll():
        print(type(event).__name__, event.job_id, flush=True)
"""

STOP_ZYGOTE = """
import os, signal
while not bench.engine._zygote.ready:
    select.select([bench.engine.fileno()], [], [])
    bench.engine.poll()
os.kill(bench.engine._zygote.process.pid, signal.SIGSTOP)
"""


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[LocalBench]:
    made = LocalBench(tmp_path, warm=False)
    yield made
    made.close()


def keeper_of(bench: LocalBench, job_id: str, attempt: int = 1) -> int:
    claim = bench.attempt_folder(job_id, attempt) / "claim.json"
    return int(json.loads(claim.read_text())["pid"])


def zygote_of(bench: LocalBench) -> int:
    assert bench.engine._zygote is not None
    return bench.engine._zygote.process.pid


def children_said(bench: LocalBench, job_id: str) -> list[int]:
    said(bench, job_id, "children")
    return [int(pid) for pid in bench.output(job_id, 1, 0).split()[1:]]


def only_the_zygote_is_left(bench: LocalBench) -> bool:
    return set(marked(bench.home)) <= {zygote_of(bench)}


@contextlib.contextmanager
def open_until_gone(pid: int) -> Iterator[int]:
    """A handle that is readable when the process has ended."""
    handle = os.pidfd_open(pid)
    try:
        yield handle
    finally:
        os.close(handle)


def test_workers_end_with_a_killed_keeper_and_the_attempt_is_lost(bench: LocalBench) -> None:
    start(bench, "family", "family", devices=(0,))
    children = children_said(bench, "family")
    keeper = keeper_of(bench, "family")
    os.kill(keeper, signal.SIGKILL)
    ended = wait_for(bench, "family")
    assert ended.fate is Fate.LOST
    assert str(keeper) in ended.reason
    assert not set(children) & set(marked(bench.home))
    until(lambda: only_the_zygote_is_left(bench), bench)


def test_a_killed_pool_is_detected_and_the_attempt_is_lost(bench: LocalBench) -> None:
    start(bench, "family", "family", devices=(0,))
    children_said(bench, "family")
    keeper = keeper_of(bench, "family")
    [pool] = Path(f"/proc/{keeper}/task/{keeper}/children").read_text().split()
    os.kill(int(pool), signal.SIGKILL)
    ended = wait_for(bench, "family")
    assert ended.fate is Fate.LOST
    assert "was it killed, or was the machine out of memory" in ended.reason
    until(lambda: only_the_zygote_is_left(bench), bench)


def test_processes_left_by_a_killed_keeper_are_ended_without_polling(bench: LocalBench) -> None:
    start(bench, "family", "family", devices=(0,))
    children = children_said(bench, "family")
    keeper = keeper_of(bench, "family")
    pools = Path(f"/proc/{keeper}/task/{keeper}/children").read_text().split()
    with contextlib.ExitStack() as handles:
        gone = [handles.enter_context(open_until_gone(pid)) for pid in children]
        for pid in (keeper, *map(int, pools)):
            os.kill(pid, signal.SIGSTOP)
        for pid in (keeper, *map(int, pools)):
            os.kill(pid, signal.SIGKILL)
        for handle in gone:
            assert select.select([handle], [], [], HANG_S)[0]
    assert wait_for(bench, "family").fate is Fate.LOST


def test_workers_survive_the_zygote_and_the_next_job_gets_a_new_one(bench: LocalBench) -> None:
    start(bench, "first", "save", devices=(0,))
    said(bench, "first", "training")
    before = zygote_of(bench)
    os.kill(before, signal.SIGKILL)
    start(bench, "second", "finish", devices=(1,))
    assert wait_for(bench, "second").fate is Fate.COMPLETED
    assert zygote_of(bench) != before
    bench.engine.stop("first", 1)
    assert wait_for(bench, "first").exit_code == 75


def test_an_order_lost_with_the_zygote_is_carried_out_once(bench: LocalBench) -> None:
    os.kill(zygote_of(bench), signal.SIGSTOP)  # it will not read the order
    start(bench, "job", "finish", devices=(0,))
    os.kill(zygote_of(bench), signal.SIGKILL)
    assert wait_for(bench, "job").fate is Fate.COMPLETED
    assert bench.num_starts("job", 1) == 1


def test_everything_killed_at_once_leaves_nothing_behind(bench: LocalBench) -> None:
    """Keeper, pool, and zygote: no process is left that would have cleaned up."""
    start(bench, "family", "family", devices=(0,))
    children = children_said(bench, "family")
    keeper = keeper_of(bench, "family")
    pools = Path(f"/proc/{keeper}/task/{keeper}/children").read_text().split()
    for pid in (zygote_of(bench), keeper, *map(int, pools)):
        os.kill(pid, signal.SIGSTOP)
    for pid in (zygote_of(bench), keeper, *map(int, pools)):
        os.kill(pid, signal.SIGKILL)
    assert wait_for(bench, "family").fate is Fate.LOST
    assert not set(children) & set(marked(bench.home))


def test_a_late_zygote_with_an_old_order_starts_nothing_twice(bench: LocalBench) -> None:
    """Two zygotes have the same order."""
    start(bench, "job", "save", devices=(0,))
    said(bench, "job", "training")
    late = ZygoteClient.launch(Folders(bench.home), os.environ, warm=False)
    assert late.receive() == {"kind": "ready", "reason": ""}
    assert late.send("job@1.json")
    told = late.receive()
    assert told is not None
    assert told["order"] == "job@1.json"  # its keeper found the claim and left
    late.close()
    keeper = keeper_of(bench, "job")
    ours = {zygote_of(bench)}
    until(lambda: {session for pid, session in marked(bench.home).items() if pid not in ours} == {keeper}, bench)
    assert bench.num_starts("job", 1) == 1


def test_a_stopped_zygote_does_not_outlive_a_killed_controller(tmp_path: Path) -> None:
    """While stopped, it cannot notice that its controller is gone."""
    paused = CONTROLLER.replace("for job in", STOP_ZYGOTE + "for job in")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [sys.executable, "-c", paused, str(tmp_path), "job"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as controller:
        assert controller.stdout is not None
        assert controller.stdout.readline() == b"started\n"
        [zygote] = marked(tmp_path)
        with open_until_gone(zygote) as gone:
            controller.kill()
            assert select.select([gone], [], [], HANG_S)[0]
    bench = LocalBench(tmp_path, warm=False)
    try:
        bench.engine.poll()  # unclaimed orders are sent again when the controller starts
        said(bench, "job", "training")
        assert bench.num_starts("job", 1) == 1
    finally:
        bench.close()


@pytest.mark.parametrize("everybody", [False, True])
def test_a_restarted_controller_finds_its_workers_three_times_in_a_row(tmp_path: Path, everybody: bool) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    for _ in range(3):
        with subprocess.Popen(
            [sys.executable, "-c", CONTROLLER, str(tmp_path), "a", "b"],
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        ) as controller:
            assert controller.stdout is not None
            seen: set[str] = set()
            while not {"WorkersStarted a", "WorkersStarted b"} <= seen:
                line = controller.stdout.readline().strip()
                assert line
                assert "Exited" not in line
                seen.add(line)
            controller.kill()
    bench = LocalBench(tmp_path, warm=False)
    try:
        for job in ("a", "b"):  # a worker that has been started writes this down a moment later
            until(lambda job=job: bench.num_starts(job, 1) == 1, bench)  # type: ignore[misc]
        if everybody:
            for job in ("a", "b"):
                os.kill(keeper_of(bench, job), signal.SIGKILL)
        fates: dict[str, Fate] = {}
        for job in ("a", "b"):
            assert bench.num_starts(job, 1) == 1
            bench.engine.stop(job, 1)

        def both_ended() -> bool:
            ends = [event for event in bench.engine.poll() if isinstance(event, WorkersExited)]
            fates.update({event.job_id: event.fate for event in ends})
            return len(fates) == 2

        until(both_ended, bench)
        assert set(fates.values()) == {Fate.LOST if everybody else Fate.STOPPED}
        until(lambda: only_the_zygote_is_left(bench), bench)
    finally:
        bench.close()


@pytest.mark.parametrize("point", [name for name in FAILPOINTS if name.startswith("keeper.")])
def test_a_keeper_killed_at_a_fail_point_starts_nothing_twice(tmp_path: Path, point: str) -> None:
    bench = LocalBench(tmp_path, warm=False, environment={**os.environ, VARIABLE: point})
    try:
        start(bench, "job", "finish", devices=(0, 1))
        ended = wait_for(bench, "job")
        before_claim = point == "keeper.before_claim"
        assert ended.fate is (Fate.COMPLETED if point == "keeper.after_outcome" else Fate.LOST), ended
        assert bench.num_starts("job", 1) <= (0 if before_claim else 1)
        bench.reopen()
        assert wait_for(bench, "job") == ended
        until(lambda: only_the_zygote_is_left(bench), bench)
    finally:
        bench.close()


@pytest.mark.parametrize("point", [name for name in FAILPOINTS if name.startswith("engine.")])
def test_a_controller_killed_while_starting_a_job_starts_it_once(tmp_path: Path, point: str) -> None:
    path = os.pathsep.join(path for path in sys.path if path)
    environment = {**os.environ, "PYTHONPATH": path, VARIABLE: point}
    program = [sys.executable, "-c", CONTROLLER, str(tmp_path), "job"]
    assert subprocess.run(program, env=environment, check=False).returncode == -signal.SIGKILL
    bench = LocalBench(tmp_path, warm=False)
    try:
        start(bench, "job", "save", devices=(0,))
        events_until(bench, "job", 1, WorkersStarted)
        said(bench, "job", "training")
        assert bench.num_starts("job", 1) == 1
    finally:
        bench.close()


def test_a_zygote_that_cannot_start_fails_the_job_and_names_its_log(tmp_path: Path) -> None:
    bench = LocalBench(tmp_path, warm=False, environment={**os.environ, "PYTHONHOME": "/nowhere"})
    try:
        start(bench, "job", "finish", devices=(0,))
        ended = wait_for(bench, "job")
        assert ended.fate is Fate.LOST
        assert "zygote.log" in ended.reason
        while select.select([bench.engine.fileno()], [], [], 0.3)[0]:
            assert not [event for event in bench.engine.poll() if isinstance(event, WorkersExited)]
    finally:
        bench.close()
