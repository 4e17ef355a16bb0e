"""Whatever a job puts in place of its output: reading it never blocks, and never follows a link elsewhere."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.unit.daemon.awaiting import until
from tests.unit.daemon.conftest import a_job
from tests.unit.daemon.scripted_engine import ScriptedEngine

from weft.daemon.contract import UnknownJobError
from weft.daemon.home import Home
from weft.daemon.service import Controller

TB = 1 << 40


@pytest.fixture
def output(controller: Controller, engine: ScriptedEngine, home: Home) -> tuple[str, Path]:
    """A running job, and where the output of its worker belongs."""
    job_id = controller.submit(a_job())
    until(lambda: (job_id, 1) in engine.running(), "workers ordered")
    folder = home.attempts(job_id) / "1"
    folder.mkdir(parents=True)
    return job_id, folder / "rank0.out"


def link_to(target: str) -> Callable[[Path], None]:
    return lambda path: path.symlink_to(target)


@pytest.mark.parametrize(
    "put", [os.mkfifo, Path.mkdir, link_to("/etc/passwd"), link_to("/dev/zero"), link_to("rank0.out")]
)
def test_a_log_that_is_not_a_file_is_refused_and_the_controller_keeps_answering(
    controller: Controller, output: tuple[str, Path], put: Callable[[Path], None]
) -> None:
    job_id, path = output
    put(path)
    with pytest.raises(UnknownJobError, match="not a regular file"):
        controller.logs(job_id)
    assert controller.job(job_id).id == job_id


def test_an_attempt_or_a_worker_that_does_not_exist_is_answered_with_those_that_do(
    controller: Controller, output: tuple[str, Path]
) -> None:
    job_id, path = output
    path.write_text("")
    with pytest.raises(UnknownJobError, match=r"no attempt 3: it has had only attempt 1$"):
        controller.logs(job_id, attempt=3)
    with pytest.raises(UnknownJobError, match=r"no worker 2: it has only worker 0$"):
        controller.logs(job_id, rank=2)
    path.with_name("rank1.out").write_text("")
    with pytest.raises(UnknownJobError, match=r"no worker 2: its workers are 0 to 1$"):
        controller.logs(job_id, rank=2)


def test_a_folder_that_leads_elsewhere_is_not_followed(
    controller: Controller, output: tuple[str, Path], tmp_path: Path
) -> None:
    job_id, path = output
    (tmp_path / "rank0.out").write_text("secret")
    path.parent.rmdir()
    path.parent.symlink_to(tmp_path)
    with pytest.raises(UnknownJobError, match="is a link"):
        controller.logs(job_id)


def test_the_end_of_a_huge_file_is_read_without_the_rest(controller: Controller, output: tuple[str, Path]) -> None:
    job_id, path = output
    with path.open("wb") as file:
        file.truncate(TB)
        file.seek(TB)
        file.write(b"the end\n")
    log = controller.logs(job_id)
    assert log.skip_to_last(8) == TB
    assert log.read() == b"the end\n"
    log.close()
