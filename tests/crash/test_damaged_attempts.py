"""Files of an attempt that were deleted or damaged cost that attempt at most; the controller starts and stays up."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.contract.benches import LocalBench, marked, said, start, until, wait_for
from tests.crash.conftest import Begin
from tests.crash.driven_controller import DrivenController
from tests.crash.test_controller_kill import until_step
from tests.crash.test_engine_kill import only_the_zygote_is_left
from tests.hang_limit import HANG_S

from weft.core.events import Fate


def deleted(folder: Path) -> None:
    shutil.rmtree(folder)


def overwritten(name: str, data: bytes) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        (folder / name).write_bytes(data)

    damage.__name__ = f"{name}={data[:12]!r}"
    return damage


def fifo(name: str) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        os.mkfifo(folder / name)

    damage.__name__ = f"{name}=fifo"
    return damage


def folder(name: str) -> Callable[[Path], None]:
    def damage(attempt: Path) -> None:
        (attempt / name).unlink(missing_ok=True)
        (attempt / name).mkdir()
        (attempt / name / "somebody's").write_text("file")

    damage.__name__ = f"{name}=folder"
    return damage


def loop(name: str) -> Callable[[Path], None]:
    def damage(attempt: Path) -> None:
        (attempt / name).unlink(missing_ok=True)
        (attempt / name).symlink_to(attempt / name)

    damage.__name__ = f"{name}=loop"
    return damage


DAMAGES = [
    deleted,
    *(overwritten("claim.json", data) for data in (b"", b"{", b"[]", b'{"pid": "x", "start_ticks": 1, "boot_id": ""}')),
    fifo("claim.json"),
    folder("claim.json"),
    loop("claim.json"),
]
STATUS_DAMAGES = [
    *(overwritten("status.json", data) for data in (b"", b"\xff\xfe", b"[" * 50_000, b'{"fate": "splendid"}')),
    fifo("status.json"),
    folder("status.json"),
    loop("status.json"),
]


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_a_damaged_attempt_ends_as_lost_with_a_reason_and_leaves_no_process(
    tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    bench = LocalBench(tmp_path, warm=False)
    try:
        start(bench, "job", "family", devices=(0,))
        said(bench, "job", "children")
        damage(bench.attempt_folder("job", 1))
        bench.reopen()
        ended = wait_for(bench, "job")
        assert ended.fate is Fate.LOST
        assert "claim.json" in ended.reason or "is gone" in ended.reason
        until(lambda: only_the_zygote_is_left(bench), bench)
        bench.engine.forget("job", 1)
        bench.reopen()
        assert bench.engine.known() == []
    finally:
        bench.close()


@pytest.mark.parametrize("damage", STATUS_DAMAGES, ids=lambda damage: damage.__name__)
def test_the_keeper_rewrites_a_damaged_status_file(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    bench = LocalBench(tmp_path, warm=False)
    try:
        start(bench, "job", "save", devices=(0,))
        said(bench, "job", "training")
        damage(bench.attempt_folder("job", 1))
        bench.reopen()
        bench.engine.poll()
        bench.engine.stop("job", 1)
        assert wait_for(bench, "job").fate is Fate.STOPPED
    finally:
        bench.close()
    assert marked(tmp_path) == {}


UNREADABLE = """
import sys
from pathlib import Path
from tests.contract.benches import LocalBench, said, start, until, wait_for
from tests.faults.own_disk import mode_zero, obey_permissions

obey_permissions()
name, kind, words, expected = sys.argv[2:]
bench = LocalBench(Path(sys.argv[1]), warm=False)
try:
    start(bench, "job", kind, devices=(0,))
    said(bench, "job", words)
    folder = bench.attempt_folder("job", 1)
    if kind == "finish":
        until(lambda: "completed" in (folder / "status.json").read_text(), bench)
    with mode_zero(folder / name):
        bench.reopen()
        until(lambda: not bench.engine.poll() and bool(bench.engine.hints()), bench)
        assert "Permission denied" in bench.engine.hints()["job", 1], bench.engine.hints()
    bench.engine.stop("job", 1)
    assert wait_for(bench, "job").fate.value == expected
    assert bench.num_starts("job", 1) == 1
finally:
    bench.close()
"""


@pytest.mark.parametrize(
    ("name", "kind", "words", "expected"),
    [
        ("claim.json", "save", "training", "stopped"),
        ("status.json", "finish", "done", "completed"),
        (".", "save", "training", "stopped"),
    ],
)
def test_an_attempt_whose_files_are_temporarily_unreadable_is_neither_killed_nor_restarted(
    tmp_path: Path, name: str, kind: str, words: str, expected: str
) -> None:
    command = [sys.executable, "-c", UNREADABLE, str(tmp_path), name, kind, words, expected]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr


def test_an_attempt_whose_order_was_deleted_is_found_and_not_started_twice(tmp_path: Path) -> None:
    bench = LocalBench(tmp_path, warm=False)
    try:
        start(bench, "job", "finish", devices=(0,))
        said(bench, "job", "done")
        (tmp_path / "engine" / "orders" / "job@1.json").unlink()
        bench.reopen()
        start(bench, "job", "finish", devices=(0,))
        assert wait_for(bench, "job").fate is Fate.COMPLETED
        assert bench.num_starts("job", 1) == 1
    finally:
        bench.close()


def test_an_order_replaced_by_a_folder_can_be_forgotten(tmp_path: Path) -> None:
    bench = LocalBench(tmp_path, warm=False)
    try:
        start(bench, "job", "finish", devices=(0,))
        assert wait_for(bench, "job").fate is Fate.COMPLETED
        folder("job@1.json")(tmp_path / "engine" / "orders")
        bench.engine.forget("job", 1)
        assert bench.engine.known() == []
        bench.reopen()
        assert bench.engine.known() == []
        assert [file.read_text() for file in tmp_path.rglob("somebody's")] == ["file"]
    finally:
        bench.close()


@pytest.fixture
def damaged_while_away(begin: Begin, tmp_path: Path) -> Iterator[Callable[[Callable[[Path], None]], DrivenController]]:
    """A controller that comes back to a job whose folder was damaged while it was away."""

    def make(damage: Callable[[Path], None]) -> DrivenController:
        controller = begin().ready()
        job_id = controller.submit(200)
        until_step(tmp_path, job_id, 3)
        controller.kill()
        damage(tmp_path / "home" / "jobs" / job_id / "attempts" / "1")
        return begin().ready()

    return make


@pytest.mark.parametrize("damage", [lambda folder: shutil.rmtree(folder.parents[1]), DAMAGES[1], STATUS_DAMAGES[0]])
def test_a_restarted_controller_finishes_a_damaged_job_and_the_others(
    damaged_while_away: Callable[..., DrivenController], damage: Callable[[Path], None]
) -> None:
    controller = damaged_while_away(damage)
    other = controller.submit_command([sys.executable, "-c", "pass"])
    (job_id,) = (job["id"] for job in controller.ask("jobs") if job["id"] != other)
    done = controller.ask("wait", job_ids=[job_id, other], timeout_s=HANG_S)
    assert done == {job_id: "COMPLETED", other: "COMPLETED"}
    controller.leave()
