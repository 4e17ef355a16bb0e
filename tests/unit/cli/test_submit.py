"""`weft submit`: what is submitted is what was typed, and mistakes are refused before anything happens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.fake_controller import FakeController

from weft.cli import load
from weft.daemon.home import Home


def test_submit_prints_the_id_and_nothing_else(weft: Any, home: Home, controller: FakeController) -> None:
    shown = weft("submit", "--workers", "1:4", "--name", "it", "--env", "A=b=c", "--", "python", "t.py", "--json", "--")
    assert shown.code == 0
    (job,) = controller.by_id.values()
    assert shown.out == f"{job.id}\n"
    assert job.launch is not None
    assert job.launch.argv == ("python", "t.py", "--json", "--")
    assert (job.name, job.spec.min_workers, job.spec.max_workers) == ("it", 1, 4)
    assert job.launch.environment == {"A": "b=c"}
    assert job.launch.cwd == str(Path.cwd())


def test_the_command_line_wins_over_the_job_file(
    weft: Any, home: Home, controller: FakeController, tmp_path: Path
) -> None:
    file = tmp_path / "job.yaml"
    file.write_text("name: of-file\ncommand: [python, t.py]\nworkers: 1:2\nsizes: [1, 2]\nweight: 3\n")
    job_id = weft("submit", str(file), "--workers", "4", "--json").json()["id"]
    job = controller.by_id[job_id]
    assert (job.name, job.spec.min_workers, job.spec.sizes, job.spec.weight) == ("of-file", 4, (), 3.0)
    assert job.launch is not None
    assert job.launch.cwd == str(tmp_path)


def test_a_dry_run_prints_the_outlook_and_submits_nothing(weft: Any, home: Home, controller: FakeController) -> None:
    shown = weft("submit", "--dry-run", "--workers", "2", "--", "python", "train.py")
    assert "would get now:     2 workers" in shown.out
    document = weft("submit", "--dry-run", "--json", "--", "python", "train.py").json()
    assert document["outlook"] == {"workers": 1, "reason": "the cluster is empty", "reason_code": "AsRequested"}
    assert document["job"]["command"] == ["python", "train.py"]
    assert controller.by_id == {}


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        ([], "nothing to submit: expected `weft submit job.yaml`"),
        (["--"], "there is no command after `--`"),
        (["no-such-program"], "put `--` before a command"),
        (["none.yaml"], "none.yaml: cannot be read, no such file"),
        (["job.yaml", "--", "python"], "got both a job file (job.yaml) and a command"),
        (["--workers", "x", "--", "python"], "workers is 'x': expected a number such as 2"),
        (["--env", "A", "--", "python"], "--env A: expected NAME=VALUE"),
        (["--weight", "-1", "--", "python"], "--weight: -1 is out of range"),
        (["--cwd", "/no/such", "--", "python"], "the job's folder '/no/such' does not exist"),
    ],
)
def test_a_wrong_submission_says_what_was_expected(args: list[str], expected: str, weft: Any, home: Home) -> None:
    shown = weft("submit", *args)
    assert shown.code == 2
    assert shown.out == ""
    assert expected in shown.err


HOSTILE = [
    'say "hi"',
    "a'; echo foo",
    "$(reboot)",
    "`id`",
    "two\nlines",
    "\u202egnp.exe",
    "\x1b[2J",
    "[red]x[/red]",
    "名前",
]


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_name_is_unchanged_in_json_and_harmless_in_a_terminal(
    name: str, weft: Any, home: Home, controller: FakeController
) -> None:
    job_id = weft("submit", "--name", name, "--", "python", name).out.strip()
    job = controller.by_id[job_id]
    assert job.launch is not None
    assert (job.name, job.launch.argv) == (name, ("python", name))
    assert weft("status", "--json").json()["jobs"][0]["name"] == name
    for verb in (["status"], ["top", "--once"], ["submit", "--dry-run", "--name", name, "--", "python", name]):
        shown = weft(*verb)
        assert shown.code == 0
        assert all(character.isprintable() or character == "\n" for character in shown.out)
        assert "\u202e" not in shown.out
    controller.cancel(job_id, reason=name)
    assert all(character.isprintable() or character == "\n" for character in weft("wait", job_id).err)


@pytest.mark.parametrize("job", [["job.yaml"], ["--", "python", "train.py"]])
def test_a_job_next_to_the_schema_is_refused_instead_of_forgotten(weft: Any, job: list[str]) -> None:
    shown = weft("submit", "--schema", *job)
    assert (shown.code, shown.out) == (2, "")
    assert "--schema only prints the JSON schema of job files: leave out the job" in shown.err


def test_an_option_that_was_probably_meant_for_weft_is_pointed_out(
    weft: Any,
    home: Home,
    controller: FakeController,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Without a word, `weft submit train.py --dry-run` would submit the job."""
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("parser.add_argument('--workers')\n")
    shown = weft("submit", "train.py", "--workers=2", "--dry-run", "--lr", "1")
    assert shown.code == 0
    assert " ".join(shown.err.split()).endswith(
        "--dry-run comes after train.py, so it goes to the script: put options of `weft submit` before the script"
    )
    (job,) = controller.by_id.values()
    assert job.launch is not None
    assert job.launch.argv[-4:] == ("--workers=2", "--dry-run", "--lr", "1")
    for own in (["train.py", "--workers=2"], ["--", "train.py", "--dry-run"], ["train.py", "--", "--dry-run"]):
        assert "comes after" not in weft("submit", *own).err
    load("run").parse(["train.py", "--share"], "weft run")  # type: ignore[union-attr]
    assert "--share comes after train.py" in " ".join(capfd.readouterr().err.split())
