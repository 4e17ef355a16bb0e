"""Settings mean the same on the command line, in the environment, and in files; nothing is ignored silently."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from weft.cli import VERBS, load, main
from weft.cli.settings import use_home, variable_of
from weft.cli.verb import Group, Verb
from weft.core import worker_environment
from weft.daemon.options import ControllerOptions
from weft.errors import InputError, UsageError

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "configuration.md").read_text()
Write = Callable[[str], None]


@pytest.fixture
def local(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return lambda text: Path("weft.toml").write_text(text)  # type: ignore[return-value]


@pytest.fixture
def user(tmp_path: Path, local: Write) -> Write:
    (tmp_path / "config" / "weft").mkdir(parents=True)
    return lambda text: (tmp_path / "config" / "weft" / "config.toml").write_text(text)  # type: ignore[return-value]


def up(*args: str) -> ControllerOptions:
    verb = load("up")
    assert isinstance(verb, Verb)
    options: Any = verb.parse(args, "weft up")["options"]
    return options


def test_the_command_line_comes_before_the_environment_before_files_before_defaults(
    local: Write, user: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert up().policy == "balanced"
    user('[up]\npolicy = "fifo"\nhold-s = 3\ncold = true\n')
    assert (up().policy, up().hold_s, up().cold) == ("fifo", 3.0, True)
    local('[up]\npolicy = "srtf"\n')
    assert (up().policy, up().hold_s) == ("srtf", 3.0)
    monkeypatch.setenv("WEFT_UP_POLICY", "equal")
    monkeypatch.setenv("WEFT_UP_COLD", "no")
    assert (up().policy, up().cold) == ("equal", False)
    assert up("--policy", "afs").policy == "afs"


def test_files_can_set_lists_and_options_of_subcommands(local: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    local('[submit]\nenv = ["A=1", "B=2"]\n[bench.elastic]\nquick = true\n')
    submit, bench = load("submit"), load("bench")
    assert isinstance(submit, Verb)
    assert isinstance(bench, Group)
    assert submit.parse(["--", "true"], "weft submit")["env"] == ["A=1", "B=2"]
    assert bench.verbs["elastic"].parse([], "weft bench elastic")["quick"] is True
    monkeypatch.setenv("WEFT_SUBMIT_ENV", "C=3 'D=4 5'")
    assert submit.parse(["--", "true"], "weft submit")["env"] == ["C=3", "D=4 5"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[up]\npolcy = "srtf"\n', "weft.toml: [up]: there is no option 'polcy': did you mean 'policy'?"),
        ("[up]\nhold_s = -1\n", "weft.toml: hold_s in [up]: -1 is out of range"),
        ('[up]\nengine = "rya"\n', "weft.toml: engine in [up]: there is no value 'rya': did you mean 'ray'?"),
        ("[up]\ncold = 7\n", "'7': expected yes or no"),
        ("[up]\npolicy = [1]\n", "expected a single value"),
        ("up = 3\n", "weft.toml: up is 3: expected a table, [up]"),
        ("[up\n", "weft.toml: is not valid TOML: "),
    ],
)
def test_a_mistake_is_one_line_that_says_where(local: Write, text: str, message: str) -> None:
    local(text)
    with pytest.raises(UsageError) as error:
        up()
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_an_unknown_table_gets_the_nearest_command(local: Write) -> None:
    local("[sumbit]\nworkers = 2\n")
    with pytest.raises(InputError, match="did you mean 'submit'"):
        use_home(VERBS)


def test_a_mistake_in_a_file_stops_a_command_with_exit_code_2(local: Write, capsys: pytest.CaptureFixture[str]) -> None:
    local("[stauts]\n")
    with pytest.raises(SystemExit) as over:
        main(["status"])
    assert over.value.code == 2
    assert "did you mean 'status'" in capsys.readouterr().err


def test_the_home_may_be_in_a_file_and_the_variable_comes_first(
    local: Write, user: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEFT_HOME", "")
    user('home = "/somewhere"\n')
    local('home = "mine"\n')
    use_home(VERBS)
    assert os.environ["WEFT_HOME"] == str(tmp_path / "here" / "mine")
    monkeypatch.setenv("WEFT_HOME", "/other")
    use_home(VERBS)
    assert os.environ["WEFT_HOME"] == "/other"


def test_a_file_that_others_can_write_decides_nothing(local: Write) -> None:
    local('[up]\npolicy = "fifo"\n')
    Path("weft.toml").chmod(0o666)
    with pytest.raises(InputError, match="anyone can write"):
        up()


def test_no_option_has_the_name_of_a_variable_with_another_meaning() -> None:
    taken = {value for value in vars(worker_environment).values() if isinstance(value, str) and "WEFT_" in value}
    taken |= {"WEFT_HOME", "WEFT_DATA", "WEFT_HOST", "WEFT_ENGINE", "WEFT_FAILPOINT"}
    for name in VERBS:
        verb = load(name)
        commands = {(name,): verb} if isinstance(verb, Verb) else {(name, sub): one for sub, one in verb.verbs.items()}
        for command, one in commands.items():
            assert not taken & {variable_of(command, option) for option in one.option_names()}


def test_every_variable_that_the_source_names_is_on_the_page() -> None:
    named = {
        variable
        for path in (ROOT / "src").rglob("*.py")
        for variable in re.findall(r"\bWEFT_[A-Z0-9_]*[A-Z0-9]\b", path.read_text())
    }
    assert "WEFT_CHECKPOINT_DIR" in named
    assert sorted(variable for variable in named if variable not in PAGE) == []


def test_the_example_on_the_page_is_accepted(local: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_HOME", "/somewhere")
    (text,) = re.findall(r"^```toml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    local(text)
    assert (up().policy, up().keep, up().no_share) == ("balanced", "30d", True)
    use_home(VERBS)
