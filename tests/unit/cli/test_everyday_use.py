"""What people type a hundred times a day: names instead of ids, a script instead of a job file, a narrow terminal."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import pytest
from tests.fake_controller import FakeController

from weft.cli import main
from weft.cli.status import NARROW_HEADINGS, narrow_cells, print_jobs
from weft.client import Client
from weft.control.state import JobState
from weft.core.job_choice import matching_id
from weft.core.reason import Reason
from weft.daemon.home import Home
from weft.errors import UsageError


@pytest.fixture(autouse=True)
def _in_an_empty_folder(home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")


def script(name: str, text: str = "import torch\n") -> None:
    Path(name).write_text(text)


# Choosing a job ------------------------------------------------------------------------------------------------------


def test_a_job_is_found_by_id_prefix_or_name(controller: FakeController, weft: Any) -> None:
    job = controller.add(name="resnet", state=JobState.RUNNING, devices=(0,), attempt=1)
    other = controller.add(name="bert", state=JobState.COMPLETED, finished_s=9.0)
    controller.output[job.id, 1, "out"] = b"hello\n"
    controller.output[job.id, 1, "err"] = b""
    prefix = next(job.id[:n] for n in range(1, 9) if not other.id.startswith(job.id[:n]))
    for word in (job.id, prefix, "resnet"):
        assert weft("status", word, "--json").json()["jobs"][0]["id"] == job.id
        assert weft("explain", word, "--json").json()["id"] == job.id
        assert weft("trace", word, "--json").json()["id"] == job.id
        assert weft("logs", word).out == "hello\n"
        assert weft("change", word, "--weight", "2", "--json").json()["jobs"][0]["id"] == job.id
        assert weft("whatif", "--job", word, "--weight", "3", "--json").code == 0
    assert weft("wait", "bert").code == 0
    assert weft("cancel", "resnet").out.startswith(job.id)


def test_a_checkpoint_is_found_by_the_name_of_its_job(controller: FakeController, home: Home, weft: Any) -> None:
    job = controller.add(name="resnet50")  # eight characters that could also be an id
    home.checkpoints(job.id).mkdir(parents=True)
    assert str(home.checkpoints(job.id)) in weft("checkpoint", "export", "resnet50").err


def test_a_name_that_several_jobs_have_lists_them_and_does_nothing(controller: FakeController, weft: Any) -> None:
    jobs = [controller.add(name="resnet") for _ in range(2)]
    shown = weft("cancel", "resnet")
    assert shown.code == 2
    assert all(job.id in shown.err for job in jobs)
    assert all(controller.by_id[job.id].state is JobState.PENDING for job in jobs)


def test_an_id_comes_before_a_name_and_a_name_before_a_prefix() -> None:
    rows: Any = [
        {"id": "abcdefgh", "name": "b", "state": "RUNNING"},
        {"id": "bcdefghj", "name": "abcdefgh", "state": "RUNNING"},
    ]
    assert matching_id(rows, "abcdefgh") == "abcdefgh"
    assert matching_id(rows, "b") == "abcdefgh"
    assert matching_id(rows, "bc") == "bcdefghj"
    with pytest.raises(UsageError, match="did you mean"):
        matching_id(rows, "abcdefgx")


# Submitting -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "argv"),
    [
        (["train.py"], ("python", "train.py")),
        (["train.py", "--lr", "0.1", "--workers", "9"], ("python", "train.py", "--lr", "0.1", "--workers", "9")),
        (["python", "train.py", "-x"], ("python", "train.py", "-x")),
        (["--workers", "2", "train.py"], ("python", "train.py")),
        (["--", "train.py"], ("python", "train.py")),
        (["go.sh"], ("bash", "go.sh")),
        (["--", "python", "missing.py"], ("python", "missing.py")),
    ],
)
def test_submit_runs_what_was_meant(
    controller: FakeController, weft: Any, words: list[str], argv: tuple[str, ...]
) -> None:
    script("train.py")
    script("go.sh", "true\n")
    shown = weft("submit", *words)
    assert shown.code == 0, shown.err
    launch = controller.by_id[shown.out.strip()].launch
    assert launch is not None
    assert launch.argv == argv


def test_a_mistyped_script_gets_the_nearest_one(controller: FakeController, weft: Any) -> None:
    script("train.py")
    shown = weft("submit", "trian.py")
    assert (shown.code, controller.by_id) == (2, {})
    assert "there is no script 'trian.py': did you mean 'train.py'?" in shown.err


@pytest.mark.parametrize("there", [(), ("setup.sh", "other.py")])
def test_a_missing_script_unlike_any_other_is_asked_for_by_path(
    controller: FakeController, weft: Any, there: tuple[str, ...]
) -> None:
    for name in there:
        script(name)
    shown = weft("submit", "resnet50.py")
    assert (shown.code, controller.by_id) == (2, {})
    assert shown.err.startswith(f"weft: there is no script 'resnet50.py': give its path, from {Path.cwd()}")


def test_a_mistyped_interpreter_gets_the_nearest_one(controller: FakeController, weft: Any) -> None:
    script("train.py")
    shown = weft("submit", "--workers", "2", "pyhton", "train.py")
    assert (shown.code, controller.by_id) == (2, {})
    assert "there is no program 'pyhton': did you mean 'python'?" in shown.err


def test_a_script_carries_its_own_options_and_the_command_line_overrides_them(
    controller: FakeController, weft: Any
) -> None:
    script(
        "train.py",
        "#!/usr/bin/env python\n# a comment\n#WEFT --workers 2:4 --name 'big one'\n\n"
        "# WEFT --env A=1 --total-steps 500\n# WEFT is a tool\n"
        "import torch\n",
    )
    job = controller.by_id[weft("submit", "--env", "B=2", "--total-steps", "7", "train.py").out.strip()]
    assert (job.spec.min_workers, job.spec.max_workers, job.name, job.progress.total_steps) == (2, 4, "big one", 7)
    assert job.launch is not None
    assert job.launch.environment == {"A": "1", "B": "2"}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("#WEFT --wokers 2", "train.py:1: #WEFT: there is no option '--wokers': did you mean '--workers'?"),
        ("#WEFT --name 'x", "no closing quotation"),
        ("import torch\n#WEFT --name x", "train.py:2: #WEFT: this line comes after the first line of code"),
        ("#WEFT --dry-run", "expected only --workers"),
        ("#WEFT other.py", "#WEFT: "),
    ],
)
def test_a_mistake_in_a_script_names_its_line(controller: FakeController, weft: Any, line: str, message: str) -> None:
    script("train.py", f"{line}\n")
    shown = weft("submit", "train.py")
    assert (shown.code, controller.by_id) == (2, {})
    assert message in shown.err
    assert "train.py:" in shown.err


# 80 columns -----------------------------------------------------------------------------------------------------------


def test_80_columns_show_whole_ids_and_the_reason(
    controller: FakeController, capsys: pytest.CaptureFixture[str]
) -> None:
    controller.add(
        name="a-very-long-name-of-a-job-nobody-would-type",
        state=JobState.RUNNING,
        devices=tuple(range(16)),
        step=123_456_789,
        total_steps=None,
        reason="2 workers; too few devices are free for 4",
        reason_code="NoRoom",
        attempt=100,
        submitted_s=0.0,
        ran_s=1e7,
    )
    controller.add(name="b", step=5, total_steps=10, reason="waits for 1 device", reason_code="Resources")
    rows = Client().jobs()
    print_jobs(rows, 1e9, width=80)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0].split() == list(NARROW_HEADINGS)
    for row, line in zip(rows, lines[1:], strict=True):
        assert row["id"] in line
        assert line.endswith(row["reason_code"])
    print_jobs(rows, 1e9, width=200)
    assert "too few devices are free" in capsys.readouterr().out


def test_every_code_fits_beside_the_widest_job(controller: FakeController) -> None:
    job = controller.add(
        name="x" * 100, devices=(0,) * 99, step=10**11, ran_s=1e9, submitted_s=0.0, state=JobState.CANCELLED
    )
    row = {**Client().job(job.id), "min_workers": 1, "max_workers": 99}
    before = sum(len(cell) + 2 for cell in narrow_cells(row)[:-1])  # type: ignore[arg-type]
    longest = max(len(kind.__name__) for kind in get_args(Reason))
    assert before + longest <= 80


def test_the_usage_line_of_checkpoint_export_names_its_argument(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["checkpoint", "export", "--help"])
    assert "weft checkpoint export [options] SOURCE\n" in capsys.readouterr().out
