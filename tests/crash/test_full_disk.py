"""A disk that is really full under a controller and its jobs: everybody waits, and everything ends once."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.crash.conftest import Begin
from tests.crash.driven_controller import DrivenController
from tests.hang_limit import HANG_S

JOB = """
import sys, time
from pathlib import Path
ran, go = Path(sys.argv[1]), Path(sys.argv[2])
with ran.open("a") as file:
    file.write("started\\n")
while not go.exists():
    time.sleep(0.02)
"""


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """The controller's home on a disk of its own, of 4 MB."""
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    options = ["mount", "-t", "tmpfs", "-o", "size=4m,mode=0700", "none", str(home)]
    if os.geteuid() != 0 or subprocess.run(options, capture_output=True, check=False).returncode != 0:
        pytest.skip("may not mount a small disk here: needs root")
    yield home
    subprocess.run(["umount", "-l", str(home)], check=True)


def fill(disk: Path) -> Path:
    """Until not one byte more fits."""
    ballast = disk / "ballast"
    with ballast.open("wb", buffering=0) as file:
        for size in (1 << 16, 1 << 12, 1):
            with contextlib.suppress(OSError):
                while True:
                    file.write(b"\0" * size)
    return ballast


def until_reason(controller: DrivenController, job_id: str, words: str) -> None:
    deadline_s = time.monotonic() + HANG_S
    while words not in controller.job(job_id)["reason"]:
        assert time.monotonic() < deadline_s, controller.job(job_id)
        time.sleep(0.05)


@pytest.mark.parametrize("killed", [False, True], ids=["alive", "controller killed meanwhile"])
def test_a_job_that_finishes_on_a_full_disk_is_reported_later_and_never_rerun(
    disk: Path, begin: Begin, tmp_path: Path, killed: bool
) -> None:
    controller = begin().ready()
    go = tmp_path / "go"
    script = tmp_path / "job.py"
    script.write_text(JOB)
    ran = [tmp_path / f"ran{number}" for number in range(2)]
    ids = [controller.submit_command([sys.executable, str(script), str(path), str(go)]) for path in ran]
    for job_id in ids:
        controller.until(job_id, {"RUNNING"})
    deadline_s = time.monotonic() + HANG_S
    while not all(path.exists() for path in ran):
        assert time.monotonic() < deadline_s
        time.sleep(0.02)
    ballast = fill(disk)
    go.touch()
    for job_id in ids:
        until_reason(controller, job_id, "retrying to record that (No space left on device)")
    if killed:
        controller.kill()
    ballast.unlink()
    if killed:
        controller = begin().ready()
    assert controller.ask("wait", job_ids=ids, timeout_s=HANG_S) == dict.fromkeys(ids, "COMPLETED")
    assert [path.read_text() for path in ran] == ["started\n"] * 2, "a job that had finished ran again"
    assert {controller.job(job_id)["attempt"] for job_id in ids} == {1}
    controller.leave()
