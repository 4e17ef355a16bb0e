"""Help texts, completion, and suggestions: every command and option can be found without the manual."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.fake_controller import FakeController

from weft.cli import VERBS, load, overview
from weft.cli.completion import candidates, subcommands
from weft.cli.verb import Verb
from weft.control.state import JobState
from weft.daemon.home import Home


def test_every_command_is_in_the_overview() -> None:
    shown = overview()
    assert [verb for verb in VERBS if f"\n  {verb} " not in shown] == []


GROUPS = ("bench", "checkpoint")


COMMANDS = [[verb] for verb in sorted(VERBS) if verb not in GROUPS]


COMMANDS += [[group, name] for group in GROUPS for name in subcommands(group)]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_has_json_or_the_docs_say_why_not(command: list[str]) -> None:
    if "--json" not in candidates([*command, "--js"]):
        page = (Path(__file__).parents[3] / "docs" / "cli.md").read_text()
        (exceptions,) = [line for line in page.splitlines() if "have no `--json`" in line]
        assert f"`weft {' '.join(command)}`" in exceptions


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_option_is_shown_with_its_default(command: list[str], weft: Any) -> None:
    shown = weft(*command, "--help")
    assert shown.code == 0
    assert shown.out.startswith(f"usage: weft {' '.join(command)} [options]")
    options = re.split(r"\n  (?=-)", shown.out.partition("\noptions:")[2])[2:]
    assert [option for option in options if "(default: " not in " ".join(option.split())] == []
    assert {flag for option in options for flag in re.findall(r"(?:^|, )(--?[a-z-]+)", option.splitlines()[0])} >= set(
        candidates([*command, "-"])
    ) - {"--help"}


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (["statsu"], "did you mean `weft status`?"),
        (["bench", "overlab"], "did you mean 'weft bench overlap'?"),
        (["bench", "foo"], "there is no command 'weft bench foo': expected one of overlap, "),
        (["predict", "--model", "x"], "there is no option '--model': expected one of --compute-ms, "),
        (["bench"], "expected one of overlap, crossover, elastic"),
        (["up", "--polcy", "fifo"], "there is no option '--polcy': did you mean '--policy'?"),
        (["sim", "q.csv", "--gpu=4"], "there is no option '--gpu': did you mean '--gpus'?"),
        (["run", "--wokers", "2", "t.py"], "there is no option '--wokers': did you mean '--workers'?"),
        (["logs", "k3v9x2qa", "--stream", "errr"], "--stream: there is no value 'errr': did you mean 'err'?"),
        (["up", "--engine", "steam"], "--engine: there is no value 'steam': expected one of local"),
        (["up", "--devices", "two"], "--devices: 'two' is not a whole number"),
        (["up", "--port", "70000"], "--port: 70000 is out of range: expected a whole number of at least 0 and at most"),
        (["logs"], "required: ID"),
        (["explain", "a", "b"], "unexpected argument 'b'"),
        (["completion", "fsh"], "did you mean 'fish'?"),
    ],
)
def test_a_typo_gets_a_suggestion_or_what_was_expected(args: list[str], expected: str, weft: Any) -> None:
    shown = weft(*args)
    assert (shown.code, shown.out) == (2, "")
    assert shown.err.startswith("weft: ")
    assert shown.err.count("\n") == 1
    assert expected in shown.err


def test_completion_offers_verbs_options_and_ids(
    weft: Any, home: Home, controller: FakeController, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("weft.cli.completion._TIMEOUT_S", 30.0)  # a busy machine offers ids too
    active, over = controller.add(), controller.add(state=JobState.FAILED)
    assert candidates(["st"]) == ["status"]
    assert candidates([]) == sorted(VERBS)
    assert candidates(["logs", ""]) == [over.id, active.id]
    assert candidates(["cancel", ""]) == [active.id]
    assert candidates(["wait", active.id, ""]) == []
    assert "--dry-run" in candidates(["submit", "--d"])
    assert candidates(["submit", "--", "--d"]) == []
    assert "overlap" in candidates(["bench", "o"])
    assert candidates(["bench", "overlap", "--q"]) == ["--quick"]
    assert weft("completion", "words", "--", "cancel", "").out == f"{active.id}\n"
    for shell in ("bash", "zsh", "fish"):
        assert "weft completion words" in weft("completion", shell).out
    assert weft("completion", "tcsh").code == 2


def test_completion_is_silent_without_a_controller(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("WEFT_HOME", str(tmp_path / "nobody"))
    assert candidates(["logs", ""]) == []


def test_everything_after_the_script_belongs_to_the_script() -> None:
    run = load("run")
    assert isinstance(run, Verb)
    values = run.parse(["--workers", "2", "train.py", "--workers", "3", "--", "-x"], "weft run")
    assert (values["workers"], values["command"]) == ("2", ["train.py", "--workers", "3", "--", "-x"])


def test_a_closed_output_pipe_is_not_an_error() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as closed:
        done = subprocess.run(
            [sys.executable, "-m", "weft", "--help"], stdout=closed, stderr=subprocess.PIPE, check=False
        )
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.parametrize(
    ("closed", "words", "code"),
    [
        (">&-", ("sim", "--help"), 0),
        ("<&- >&- 2>&-", ("doctor", "--help"), 0),
        ("2>&-", ("nonsense",), 2),  # the message must not become part of the result
    ],
)
def test_a_command_started_without_standard_streams_exits_as_always(
    closed: str, words: tuple[str, ...], code: int
) -> None:
    command = ["sh", "-c", f'exec "$@" {closed}', "sh", sys.executable, "-m", "weft", *words]
    done = subprocess.run(command, capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (code, b"", b"")
